#include "runtime/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLengthBytes = 8;
/// The format's own bound.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxDims = 4;
constexpr std::string_view kMetadataKey = "__metadata__";

/// One of the format's types of elements.
struct ElementType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<WeightType> type;  ///< nothing: this library does not read it
};
constexpr ElementType kTypes[] = {
    {"F32", 4, WeightType::kF32},
    {"F16", 2, WeightType::kF16},
    {"BF16", 2, WeightType::kBf16},
    {"F64", 8, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"C64", 8, {}},
};

/// One entry of the header.
struct Entry {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;  ///< outermost dimension first
  std::uint64_t begin = 0, end = 0;  ///< in the data
};

/// A number that a JSON text gives as a whole number of at least 0.
std::optional<std::uint64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  return std::nullopt;
}

/// Reads the entries of a header and names what is wrong.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Result<SafetensorsIndex> Run();

 private:
  template <class... Parts>
  Status Bad(const Parts&... parts) const {
    return IoError(name_, parts...);
  }
  template <class... Parts>
  Status BadTensor(std::string_view tensor, const Parts&... parts) const {
    return IoError(name_, "tensor '", Printable(tensor), "' ", parts...);
  }

  Status FindHeader();
  Status CheckMetadata(const Json& metadata) const;
  Status ReadEntry(const std::string& tensor, const Json& json);
  Status ReadShape(const Json& json, Entry& entry) const;
  Status ReadOffsets(const Json& json, Entry& entry) const;
  Status CheckOrder();
  SafetensorsIndex Index();

  std::span<const std::byte> bytes_;
  const std::string& name_;
  std::string_view header_;
  std::span<const std::byte> data_;
  std::vector<Entry> entries_;
};

Status Parser::FindHeader() {
  if (bytes_.size() < kLengthBytes)
    return Bad("is no safetensors file: ", bytes_.size(), " bytes; expected at least 8");
  std::uint64_t size = 0;
  std::memcpy(&size, bytes_.data(), kLengthBytes);
  const std::uint64_t rest = bytes_.size() - kLengthBytes;
  if (size > rest || size > kMaxHeaderBytes)
    return Bad("is no safetensors file: the header's size is ", size, "; expected at most ",
               std::min(rest, kMaxHeaderBytes));
  header_ = {reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
             static_cast<std::size_t>(size)};
  if (!header_.starts_with('{'))
    return Bad("is no safetensors file: the header begins with '", Printable(header_.substr(0, 1)),
               "'; expected '{'");
  data_ = bytes_.subspan(static_cast<std::size_t>(kLengthBytes + size));
  return {};
}

Status Parser::CheckMetadata(const Json& metadata) const {
  if (!metadata.is_object())
    return Bad(kMetadataKey, " = ", ShowJson(metadata), "; expected an object");
  for (const auto& item : metadata.items())
    if (!item.value().is_string())
      return Bad(kMetadataKey, " holds ", ShowJson(item.value()), " at '", Printable(item.key()),
                 "'; expected strings");
  return {};
}

Status Parser::ReadShape(const Json& json, Entry& entry) const {
  if (!json.is_array() || json.size() > kMaxDims)
    return BadTensor(entry.name, "has shape = ", ShowJson(json), "; expected a list of at most ",
                     kMaxDims, " numbers");
  for (const Json& size : json) {
    const std::optional<std::uint64_t> number = WholeNumber(size);
    if (!number || *number == 0)
      return BadTensor(entry.name, "has shape = ", ShowJson(json),
                       "; expected whole numbers of at least 1");
    entry.shape.push_back(*number);
  }
  return {};
}

Status Parser::ReadOffsets(const Json& json, Entry& entry) const {
  if (!json.is_array() || json.size() != 2 || !WholeNumber(json[0]) || !WholeNumber(json[1]))
    return BadTensor(entry.name, "has data_offsets = ", ShowJson(json),
                     "; expected two whole numbers");
  entry.begin = *WholeNumber(json[0]);
  entry.end = *WholeNumber(json[1]);
  if (entry.begin > entry.end || entry.end > data_.size())
    return BadTensor(entry.name, "has data_offsets = ", ShowJson(json), "; the file has ",
                     data_.size(), " bytes of data");
  std::uint64_t bytes = entry.type->bytes;
  for (const std::uint64_t size : entry.shape) {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / bytes)
      return BadTensor(entry.name, "has more than 2^63 - 1 bytes");
    bytes *= size;
  }
  if (entry.end - entry.begin != bytes)
    return BadTensor(entry.name, "has ", entry.end - entry.begin, " bytes of data; its shape and ",
                     entry.type->name, " make ", bytes);
  return {};
}

Status Parser::ReadEntry(const std::string& tensor, const Json& json) {
  Entry entry;
  entry.name = tensor;
  if (!json.is_object()) return BadTensor(tensor, "= ", ShowJson(json), "; expected an object");
  for (const char* const key : {"dtype", "shape", "data_offsets"})
    if (!json.contains(key)) return BadTensor(tensor, "has no ", key);
  if (json.size() != 3)
    return BadTensor(tensor, "has ", json.size(), " keys; expected dtype, shape and data_offsets");
  const Json& type = json["dtype"];
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const ElementType& one) { return type == Json(std::string(one.name)); });
  if (found == std::end(kTypes))
    return BadTensor(tensor, "has dtype = ", ShowJson(type), "; expected F32, F16 or BF16");
  entry.type = found;
  if (Status status = ReadShape(json["shape"], entry); !status.ok()) return status;
  if (Status status = ReadOffsets(json["data_offsets"], entry); !status.ok()) return status;
  entries_.push_back(std::move(entry));
  return {};
}

/// Sorts the tensors by their data, which have to cover the file without gaps.
Status Parser::CheckOrder() {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.end < b.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries_) {
    if (entry.begin != covered)
      return BadTensor(entry.name, "begins at byte ", entry.begin, " of the data; expected ",
                       covered, ", where the tensor before it ends");
    covered = entry.end;
  }
  if (covered != data_.size())
    return Bad("has ", data_.size(), " bytes of data; its tensors take ", covered);
  return {};
}

SafetensorsIndex Parser::Index() {
  SafetensorsIndex index;
  index.names.reserve(entries_.size());  // views of names stay
  for (Entry& entry : entries_) {
    index.names.push_back(std::move(entry.name));
    if (!entry.type->type) {
      index.others.push_back({index.names.back(), entry.type->name});
      continue;
    }
    StoredTensor tensor;
    tensor.name = index.names.back();
    tensor.type = *entry.type->type;
    tensor.num_dims = static_cast<int>(std::max<std::size_t>(1, entry.shape.size()));
    std::transform(entry.shape.rbegin(), entry.shape.rend(), tensor.shape,
                   [](std::uint64_t size) { return static_cast<std::int64_t>(size); });
    tensor.data = data_.data() + entry.begin;
    tensor.size_bytes = static_cast<std::int64_t>(entry.end - entry.begin);
    index.tensors.push_back(tensor);
  }
  return index;
}

Result<SafetensorsIndex> Parser::Run() {
  if (Status status = FindHeader(); !status.ok()) return status;
  const Result<JsonTree> header = ParseJson(header_, JsonKeys::kUnique);
  if (!header.ok()) return Bad("header: ", header.status().message());
  for (const auto& item : header->root().items()) {
    Status status = item.key() == kMetadataKey ? CheckMetadata(item.value())
                                               : ReadEntry(item.key(), item.value());
    if (!status.ok()) return status;
  }
  if (Status status = CheckOrder(); !status.ok()) return status;
  return Index();
}

}  // namespace

Result<SafetensorsIndex> ParseSafetensors(std::span<const std::byte> bytes,
                                          const std::string& name) {
  return Parser(bytes, name).Run();
}

}  // namespace manyhead
