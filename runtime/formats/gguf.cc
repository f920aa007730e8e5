#include "runtime/formats/gguf.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "runtime/formats/gguf_parse.h"
#include "runtime/formats/gguf_value.h"
#include "runtime/platform/mapped_file.h"
#include "runtime/platform/printable.h"

namespace manyhead {

struct GgufFile::Impl {
  std::string path;
  MappedFile file;
  GgufIndex index;

  std::optional<GgufValue> Find(std::string_view key) const noexcept {
    return FindValue(file.bytes(), index, key);
  }
  Status WrongType(std::string_view key, const GgufValue& value, const char* expected) const {
    return {StatusCode::kIoError, Printable(path, path.size()) + ": key '" + Printable(key) +
                                      "' is of type " + value.TypeText() + "; expected " +
                                      expected};
  }
  Status DoesNotFit(std::string_view key, const GgufValue& value, const char* type) const {
    return {StatusCode::kIoError, Printable(path, path.size()) + ": key '" + Printable(key) +
                                      "' = " + DescribeValue(value) + " of type " +
                                      value.TypeText() + " does not fit " + type};
  }
};

Result<GgufFile> GgufFile::Open(const std::string& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  file->AdviseSequential();
  Result<GgufIndex> index = ParseGguf(file->bytes(), Printable(path, path.size()));
  if (!index.ok()) return index.status();
  return GgufFile(std::make_unique<const Impl>(Impl{path, std::move(*file), std::move(*index)}));
}

GgufFile::GgufFile(std::unique_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

Result<std::optional<std::string_view>> GgufFile::GetString(std::string_view key) const {
  using Value = std::optional<std::string_view>;
  std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (value->type() != GgufType::kString) return impl_->WrongType(key, *value, "a string");
  return Value(TakeString(&value->cursor));
}

Result<std::optional<std::int64_t>> GgufFile::GetInt(std::string_view key) const {
  using Value = std::optional<std::int64_t>;
  std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (!IsInteger(value->type())) return impl_->WrongType(key, *value, "an integer");
  GgufCursor cursor = value->cursor;
  const Value number = TakeInt(value->element_type, &cursor);
  if (!number) return impl_->DoesNotFit(key, *value, "int64");
  return number;
}

Result<std::optional<double>> GgufFile::GetFloat(std::string_view key) const {
  using Value = std::optional<double>;
  std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (!IsNumber(value->type())) return impl_->WrongType(key, *value, "a number");
  return Value(TakeFloat(value->element_type, &value->cursor));
}

Result<std::optional<bool>> GgufFile::GetBool(std::string_view key) const {
  using Value = std::optional<bool>;
  const std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (value->type() != GgufType::kBool) return impl_->WrongType(key, *value, "a bool");
  GgufCursor cursor = value->cursor;
  return Value(TakeBool(&cursor));
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::GetStrings(
    std::string_view key) const {
  using Value = std::optional<std::vector<std::string_view>>;
  std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (!value->is_array || value->element_type != GgufType::kString)
    return impl_->WrongType(key, *value, "an array of strings");
  std::vector<std::string_view> strings(value->count);
  for (std::string_view& text : strings) text = TakeString(&value->cursor);
  return Value(std::move(strings));
}

Result<std::optional<std::vector<std::int64_t>>> GgufFile::GetInts(std::string_view key) const {
  using Value = std::optional<std::vector<std::int64_t>>;
  const std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  std::vector<std::int64_t> numbers(value->count);
  GgufCursor cursor = value->cursor;
  if (value->is_array && value->element_type == GgufType::kBool) {
    for (std::int64_t& number : numbers) number = TakeBool(&cursor) ? 1 : 0;
    return Value(std::move(numbers));
  }
  if (!IsInteger(value->element_type)) return impl_->WrongType(key, *value, "integers");
  for (std::int64_t& number : numbers) {
    const std::optional<std::int64_t> element = TakeInt(value->element_type, &cursor);
    if (!element) return impl_->DoesNotFit(key, *value, "int64");
    number = *element;
  }
  return Value(std::move(numbers));
}

Result<std::optional<std::vector<float>>> GgufFile::GetFloats(std::string_view key) const {
  using Value = std::optional<std::vector<float>>;
  const std::optional<GgufValue> value = impl_->Find(key);
  if (!value) return Value();
  if (!IsNumber(value->element_type)) return impl_->WrongType(key, *value, "numbers");
  std::vector<float> numbers(value->count);
  GgufCursor cursor = value->cursor;
  for (float& number : numbers) {
    const double element = TakeFloat(value->element_type, &cursor);
    // Infinities of the file are kept; a float64 beyond float32 would become infinite.
    if (std::isfinite(element) &&
        std::abs(element) > static_cast<double>(std::numeric_limits<float>::max()))
      return impl_->DoesNotFit(key, *value, "float32");
    number = static_cast<float>(element);
  }
  return Value(std::move(numbers));
}

std::int64_t GgufFile::Count(std::string_view key) const noexcept {
  const std::optional<GgufValue> value = impl_->Find(key);
  return value ? static_cast<std::int64_t>(value->count) : 0;
}

std::span<const StoredTensor> GgufFile::tensors() const noexcept { return impl_->index.tensors; }

const StoredTensor* GgufFile::FindTensor(std::string_view name) const noexcept {
  const std::vector<StoredTensor>& tensors = impl_->index.tensors;
  const auto name_of = [&](std::uint32_t i) { return tensors[i].name; };
  const std::vector<std::uint32_t>& order = impl_->index.tensors_by_name;
  const auto found = std::ranges::lower_bound(order, name, std::ranges::less{}, name_of);
  return found != order.end() && name_of(*found) == name ? &tensors[*found] : nullptr;
}

void GgufFile::Prefetch() const noexcept { impl_->file.AdviseWillNeed(); }

void GgufFile::ReleasePages(std::span<const std::byte> part) const noexcept {
  impl_->file.ReleasePages(part);
}

const std::string& GgufFile::path() const noexcept { return impl_->path; }

std::int64_t GgufFile::size_bytes() const noexcept {
  return static_cast<std::int64_t>(impl_->file.bytes().size());
}

int GgufFile::version() const noexcept { return impl_->index.version; }

std::vector<GgufFile::KeyInfo> GgufFile::keys() const {
  std::vector<std::uint64_t> offsets = impl_->index.keys_by_name;
  std::ranges::sort(offsets);  // the order of the file
  std::vector<KeyInfo> infos;
  infos.reserve(offsets.size());
  for (std::uint64_t offset : offsets) {
    const GgufKey key = ReadKey(impl_->file.bytes(), offset);
    infos.push_back({key.name, key.value.type(), DescribeValue(key.value)});
  }
  return infos;
}

std::vector<Metadata::Entry> GgufFile::entries() const {
  std::vector<Entry> entries;
  for (KeyInfo& info : keys())
    entries.push_back({info.key, static_cast<std::int64_t>(info.type), std::move(info.value)});
  return entries;
}

std::vector<GgufFile::KeyBytes> GgufFile::key_bytes() const {
  std::vector<std::uint64_t> offsets = impl_->index.keys_by_name;
  std::ranges::sort(offsets);
  offsets.push_back(impl_->index.keys_end);
  const std::span<const std::byte> bytes = impl_->file.bytes();
  std::vector<KeyBytes> keys;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    keys.push_back({ReadKey(bytes, offsets[i]).name,
                    bytes.subspan(static_cast<std::size_t>(offsets[i]),
                                  static_cast<std::size_t>(offsets[i + 1] - offsets[i]))});
  return keys;
}

std::int64_t GgufFile::alignment() const noexcept {
  return static_cast<std::int64_t>(impl_->index.alignment);
}

}  // namespace manyhead
