#include "runtime/formats/gguf_parse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/platform/math.h"
#include "runtime/platform/printable.h"

static_assert(std::endian::native == std::endian::little, "GGUF is read in place, as stored");

namespace manyhead {
namespace {

constexpr char kAlignmentKey[] = "general.alignment";
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinAlignment = 8;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxNameBytes = 65535;
constexpr std::uint32_t kMaxDims = 4;
// Least sizes in the file of a key (one letter, one byte) and a tensor (one letter, one dimension).
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
// The index of a file may take this many bytes even where the file is smaller.
constexpr std::uint64_t kFreeBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kIndexBytesPerTensor = sizeof(StoredTensor) + 16;

std::string Text(std::uint64_t value) { return std::to_string(value); }

// These are only called for messages: building the text for every key would cost more than reading
// it.
std::string KeyText(std::string_view name) { return "key '" + Printable(name) + "'"; }
std::string TensorText(std::string_view name) { return "tensor '" + Printable(name) + "'"; }
std::string NameText(const char* kind, std::uint64_t index, std::uint64_t count) {
  return std::string("the name of ") + kind + " " + Text(index + 1) + " of " + Text(count);
}

/// Parses the header of a file in one pass.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name), cursor_(bytes) {}

  Result<GgufIndex> Parse();

 private:
  // Each returns the first error, or ok.
  Status ParseHeader();
  Status CheckVersion(std::uint32_t version) const;
  Status ParseKeys();
  Status ParseKey(std::uint64_t number);
  Status ParseArray(std::string_view key);
  Status CheckBools(std::string_view key, std::uint64_t count);
  Status IndexKeys();
  Status FindAlignment();
  Status ParseTensors();
  Status ParseTensor(std::uint64_t number);
  Status ParseShape(StoredTensor* tensor);
  Status SizeTensor(std::uint32_t type_id, StoredTensor* tensor) const;
  Status IndexTensors();
  Status PlaceTensors();
  Status CheckOverlap() const;

  Status Error(const std::string& what) const {
    return {StatusCode::kIoError, name_ + ": " + what};
  }
  Status Unsupported(const std::string& what) const {
    return {StatusCode::kUnsupported, name_ + ": " + what};
  }
  Status EndsInside(const std::string& what) const {
    return Error("the file of " + Text(bytes_.size()) + " bytes ends inside " + what +
                 ", read up to byte " + Text(cursor_.position()));
  }
  /// Returns the error for a string that GgufCursor::TakeString has refused.
  Status TextError(const std::string& what);

  std::span<const std::byte> bytes_;
  const std::string& name_;
  GgufCursor cursor_;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_keys_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::vector<std::uint64_t> data_offsets_;  ///< [tensor], from the start of the data
  GgufIndex index_;
};

Result<GgufIndex> Parser::Parse() {
  for (Status (Parser::*step)() :
       {&Parser::ParseHeader, &Parser::ParseKeys, &Parser::IndexKeys, &Parser::FindAlignment,
        &Parser::ParseTensors, &Parser::IndexTensors, &Parser::PlaceTensors}) {
    if (Status status = (this->*step)(); !status.ok()) return status;
  }
  return std::move(index_);
}

Status Parser::TextError(const std::string& what) {
  std::uint64_t length = 0;
  if (!cursor_.Take(&length)) return EndsInside(what);
  return Error(what + " is " + Text(length) + " bytes long but the file has " +
               Text(cursor_.remaining()) + " bytes left");
}

Status Parser::ParseHeader() {
  char magic[4] = {};
  if (!cursor_.Take(&magic)) return EndsInside("the magic");
  if (std::memcmp(magic, "GGUF", 4) != 0)
    return Error("not a GGUF file: it starts with \"" + Printable({magic, 4}) +
                 "\"; expected \"GGUF\"");
  std::uint32_t version = 0;
  if (!cursor_.Take(&version)) return EndsInside("the version");
  if (Status status = CheckVersion(version); !status.ok()) return status;
  index_.version = static_cast<int>(version);
  if (!cursor_.Take(&num_tensors_)) return EndsInside("tensor_count");
  if (!cursor_.Take(&num_keys_)) return EndsInside("kv_count");

  if (num_keys_ > cursor_.remaining() / kMinKeyBytes)
    return Error("kv_count = " + Text(num_keys_) + " is more than a file of " +
                 Text(bytes_.size()) + " bytes can hold");
  // Each tensor has data too, so real files are far below the second bound, which keeps the index
  // smaller than the file.
  if (num_tensors_ > cursor_.remaining() / kMinTensorBytes ||
      num_tensors_ > std::max<std::uint64_t>(bytes_.size(), kFreeBytes) / kIndexBytesPerTensor ||
      num_tensors_ > std::numeric_limits<std::uint32_t>::max())
    return Error("tensor_count = " + Text(num_tensors_) + " is more than a file of " +
                 Text(bytes_.size()) + " bytes can hold");
  return {};
}

Status Parser::CheckVersion(std::uint32_t version) const {
  if (version == 2 || version == 3) return {};
  const std::uint32_t swapped = __builtin_bswap32(version);
  if ((version & 0xFFFFU) == 0 && swapped != 0 && swapped <= 0xFFFFU)
    return Unsupported("big-endian GGUF version " + Text(swapped) +
                       "; only little-endian byte order is supported");
  return Unsupported("GGUF version " + Text(version) + "; expected 2 or 3");
}

Status Parser::ParseKeys() {
  for (std::uint64_t i = 0; i < num_keys_; ++i)
    if (Status status = ParseKey(i); !status.ok()) return status;
  return {};
}

Status Parser::ParseKey(std::uint64_t number) {
  const std::size_t start = cursor_.position();
  std::string_view key;
  if (!cursor_.TakeString(&key)) return TextError(NameText("key", number, num_keys_));
  if (key.empty() || key.size() > kMaxNameBytes)
    return Error(NameText("key", number, num_keys_) + " has " + Text(key.size()) +
                 " bytes; expected 1 to " + Text(kMaxNameBytes));
  std::uint32_t type = 0;
  if (!cursor_.Take(&type)) return EndsInside("the type of " + KeyText(key));
  const std::optional<std::size_t> scalar_bytes = GgufScalarBytes(type);
  if (!scalar_bytes)
    return Error(KeyText(key) + " has value type " + Text(type) + "; expected 0 to 12");

  Status status;
  if (GgufType{type} == GgufType::kArray) {
    status = ParseArray(key);
  } else if (GgufType{type} == GgufType::kString) {
    std::string_view text;
    if (!cursor_.TakeString(&text)) return TextError("the string of " + KeyText(key));
  } else if (GgufType{type} == GgufType::kBool) {
    status = CheckBools(key, 1);
  } else if (!cursor_.Skip(*scalar_bytes)) {
    return EndsInside(KeyText(key));
  }
  if (!status.ok()) return status;
  index_.keys_by_name.push_back(start);
  return {};
}

Status Parser::ParseArray(std::string_view key) {
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  if (!cursor_.Take(&type) || !cursor_.Take(&count)) return EndsInside(KeyText(key));
  const std::optional<std::size_t> element_bytes = GgufScalarBytes(type);
  if (!element_bytes)
    return Error(KeyText(key) + " is an array of value type " + Text(type) + "; expected 0 to 12");
  if (GgufType{type} == GgufType::kArray)
    return Error(KeyText(key) + " is an array of arrays; expected numbers, bools or strings");
  const std::size_t least_bytes = GgufType{type} == GgufType::kString ? 8 : *element_bytes;
  if (count > cursor_.remaining() / least_bytes)
    return Error(KeyText(key) + " is an array of " + Text(count) + " " +
                 GgufTypeName(GgufType{type}) + " but the file has " + Text(cursor_.remaining()) +
                 " bytes left");
  if (GgufType{type} == GgufType::kBool) return CheckBools(key, count);
  if (GgufType{type} != GgufType::kString) {
    cursor_.Skip(count * *element_bytes);
    return {};
  }
  std::string_view text;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (cursor_.TakeString(&text)) continue;
    return TextError("string " + Text(i + 1) + " of " + Text(count) + " of " + KeyText(key));
  }
  return {};
}

Status Parser::CheckBools(std::string_view key, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint8_t value = 0;
    if (!cursor_.Take(&value)) return EndsInside(KeyText(key));
    if (value > 1)
      return Error(KeyText(key) + " is a bool of value " + Text(value) + "; expected 0 or 1");
  }
  return {};
}

Status Parser::IndexKeys() {
  const auto name_at = [&](std::uint64_t offset) { return ReadKey(bytes_, offset).name; };
  std::vector<std::uint64_t>& keys = index_.keys_by_name;
  std::ranges::sort(keys, std::ranges::less{}, name_at);
  const auto twin = std::ranges::adjacent_find(keys, std::ranges::equal_to{}, name_at);
  if (twin == keys.end()) return {};
  return Error("key '" + Printable(name_at(*twin)) + "' appears twice, at bytes " +
               Text(std::min(twin[0], twin[1])) + " and " + Text(std::max(twin[0], twin[1])));
}

Status Parser::FindAlignment() {
  std::optional<GgufValue> value = FindValue(bytes_, index_, kAlignmentKey);
  if (!value) return {};
  if (value->is_array || !IsInteger(value->element_type))
    return Error(std::string("key '") + kAlignmentKey + "' is of type " + value->TypeText() +
                 "; expected an integer");
  const std::string text = DescribeValue(*value);
  const std::optional<std::int64_t> alignment = TakeInt(value->element_type, &value->cursor);
  if (!alignment || *alignment < static_cast<std::int64_t>(kMinAlignment) ||
      *alignment > static_cast<std::int64_t>(kMaxAlignment) ||
      !std::has_single_bit(static_cast<std::uint64_t>(*alignment)))
    return Error(std::string(kAlignmentKey) + " = " + text + "; expected a power of two from " +
                 Text(kMinAlignment) + " to " + Text(kMaxAlignment));
  alignment_ = static_cast<std::uint64_t>(*alignment);
  return {};
}

Status Parser::ParseTensors() {
  index_.keys_end = cursor_.position();
  index_.alignment = alignment_;
  // The keys have used bytes since the header was checked.
  if (num_tensors_ > cursor_.remaining() / kMinTensorBytes)
    return Error("tensor_count = " + Text(num_tensors_) + " is more than the " +
                 Text(cursor_.remaining()) + " bytes behind the keys can hold");
  index_.tensors.reserve(num_tensors_);
  data_offsets_.reserve(num_tensors_);
  for (std::uint64_t i = 0; i < num_tensors_; ++i)
    if (Status status = ParseTensor(i); !status.ok()) return status;
  return {};
}

Status Parser::ParseTensor(std::uint64_t number) {
  StoredTensor tensor;
  if (!cursor_.TakeString(&tensor.name)) return TextError(NameText("tensor", number, num_tensors_));
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes)
    return Error(NameText("tensor", number, num_tensors_) + " has " + Text(tensor.name.size()) +
                 " bytes; expected 1 to " + Text(kMaxNameBytes));
  if (Status status = ParseShape(&tensor); !status.ok()) return status;
  std::uint32_t type_id = 0;
  std::uint64_t offset = 0;
  if (!cursor_.Take(&type_id) || !cursor_.Take(&offset)) return EndsInside(TensorText(tensor.name));
  if (Status status = SizeTensor(type_id, &tensor); !status.ok()) return status;
  if (offset % alignment_ != 0)
    return Error(TensorText(tensor.name) + ": offset = " + Text(offset) +
                 " is not a multiple of the alignment = " + Text(alignment_));
  index_.tensors.push_back(tensor);
  data_offsets_.push_back(offset);
  return {};
}

Status Parser::ParseShape(StoredTensor* tensor) {
  std::uint32_t num_dims = 0;
  if (!cursor_.Take(&num_dims)) return EndsInside(TensorText(tensor->name));
  if (num_dims < 1 || num_dims > kMaxDims)
    return Error(TensorText(tensor->name) + ": n_dims = " + Text(num_dims) + "; expected 1 to " +
                 Text(kMaxDims));
  tensor->num_dims = static_cast<int>(num_dims);
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    std::int64_t& dim = tensor->shape[i];
    if (!cursor_.Take(&dim)) return EndsInside(TensorText(tensor->name));
    if (dim < 1)
      return Error(TensorText(tensor->name) + ": dimension " + Text(i) + " = " +
                   std::to_string(dim) + "; expected at least 1");
  }
  return {};
}

Status Parser::SizeTensor(std::uint32_t type_id, StoredTensor* tensor) const {
  const std::optional<WeightBlock> block = FindWeightBlock(type_id);
  if (!block)
    return Unsupported(TensorText(tensor->name) + ": type id " + Text(type_id) +
                       " is not one this library can read");
  tensor->type = WeightType{static_cast<std::uint8_t>(type_id)};
  if (tensor->cols() % block->elements != 0)
    return Error(TensorText(tensor->name) + ": dimension 0 = " + std::to_string(tensor->cols()) +
                 " is not a multiple of the block of " + WeightTypeName(tensor->type) + " = " +
                 std::to_string(block->elements));
  std::int64_t size = tensor->cols() / block->elements;
  bool overflow = __builtin_mul_overflow(size, block->bytes, &size);
  for (int i = 1; i < tensor->num_dims; ++i)
    overflow = overflow || __builtin_mul_overflow(size, tensor->shape[i], &size);
  // Callers compute the number of elements, so it must fit too.
  std::int64_t elements = 1;
  for (std::int64_t dim : tensor->shape)
    overflow = overflow || __builtin_mul_overflow(elements, dim, &elements);
  if (overflow) {
    std::string shape = std::to_string(tensor->shape[0]);
    for (int i = 1; i < tensor->num_dims; ++i) shape += " x " + std::to_string(tensor->shape[i]);
    return Error(TensorText(tensor->name) + ": the size of " + shape + " " +
                 WeightTypeName(tensor->type) + " overflows; the file has " + Text(bytes_.size()) +
                 " bytes");
  }
  tensor->size_bytes = size;
  return {};
}

Status Parser::IndexTensors() {
  const auto name_of = [&](std::uint32_t i) { return index_.tensors[i].name; };
  std::vector<std::uint32_t>& order = index_.tensors_by_name;
  order.resize(index_.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, std::ranges::less{}, name_of);
  const auto twin = std::ranges::adjacent_find(order, std::ranges::equal_to{}, name_of);
  if (twin == order.end()) return {};
  return Error("tensor '" + Printable(name_of(*twin)) + "' appears twice, as numbers " +
               Text(std::min(twin[0], twin[1]) + 1U) + " and " +
               Text(std::max(twin[0], twin[1]) + 1U) + " of " + Text(num_tensors_));
}

Status Parser::PlaceTensors() {
  if (num_tensors_ == 0) return {};  // a file of a vocabulary alone may end before its data section
  const std::uint64_t start = RoundUp(std::uint64_t{cursor_.position()}, alignment_);
  const std::uint64_t available = bytes_.size() - std::min<std::uint64_t>(start, bytes_.size());
  for (std::size_t i = 0; i < index_.tensors.size(); ++i) {
    StoredTensor& tensor = index_.tensors[i];
    const auto size = static_cast<std::uint64_t>(tensor.size_bytes);
    const std::uint64_t offset = data_offsets_[i];
    if (offset > available || size > available - offset)
      return Error("tensor '" + Printable(tensor.name) + "' of " + Text(size) +
                   " bytes at data offset " + Text(offset) + " does not fit: the file has " +
                   Text(available) + " bytes of data");
    tensor.data = bytes_.data() + start + offset;
  }
  return CheckOverlap();
}

Status Parser::CheckOverlap() const {
  std::vector<std::uint32_t> order(index_.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, std::ranges::less{}, [&](std::uint32_t i) { return data_offsets_[i]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const StoredTensor& left = index_.tensors[order[i - 1]];
    const StoredTensor& right = index_.tensors[order[i]];
    const std::uint64_t left_end =
        data_offsets_[order[i - 1]] + static_cast<std::uint64_t>(left.size_bytes);
    if (left_end > data_offsets_[order[i]])
      return Error("tensor '" + Printable(right.name) + "' at data offset " +
                   Text(data_offsets_[order[i]]) + " overlaps tensor '" + Printable(left.name) +
                   "', which ends at " + Text(left_end));
  }
  return {};
}

}  // namespace

Result<GgufIndex> ParseGguf(std::span<const std::byte> bytes, const std::string& name) {
  return Parser(bytes, name).Parse();
}

GgufKey ReadKey(std::span<const std::byte> bytes, std::uint64_t offset) noexcept {
  GgufCursor cursor(bytes, static_cast<std::size_t>(offset));
  const std::string_view name = TakeString(&cursor);
  std::uint32_t type = 0;
  std::uint64_t count = 1;
  cursor.Take(&type);
  const bool is_array = GgufType{type} == GgufType::kArray;
  if (is_array) {
    cursor.Take(&type);
    cursor.Take(&count);
  }
  return {name, {is_array, GgufType{type}, count, cursor}};
}

std::optional<GgufValue> FindValue(std::span<const std::byte> bytes, const GgufIndex& index,
                                   std::string_view key) noexcept {
  const auto name_at = [&](std::uint64_t offset) { return ReadKey(bytes, offset).name; };
  const auto found =
      std::ranges::lower_bound(index.keys_by_name, key, std::ranges::less{}, name_at);
  if (found == index.keys_by_name.end() || name_at(*found) != key) return std::nullopt;
  return ReadKey(bytes, *found).value;
}

}  // namespace manyhead
