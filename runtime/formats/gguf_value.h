#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/formats/gguf.h"

namespace manyhead {

/// Returns "uint32", "string", ...
const char* GgufTypeName(GgufType type) noexcept;
bool IsInteger(GgufType type) noexcept;
bool IsNumber(GgufType type) noexcept;
/// Returns the bytes of one value, 0 for strings and arrays, whose size is in the file; nothing for
/// a number that is no value type.
std::optional<std::size_t> GgufScalarBytes(std::uint32_t type) noexcept;

/// Reads a file's bytes from front to back. A read beyond the end does not advance.
class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> bytes, std::size_t position = 0) noexcept
      : bytes_(bytes), position_(position) {}

  template <class T>
  bool Take(T* value) noexcept {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  /// Reads a length of eight bytes and that many bytes.
  bool TakeString(std::string_view* text) noexcept;
  bool Skip(std::uint64_t num_bytes) noexcept;

  std::size_t position() const noexcept { return position_; }
  std::size_t remaining() const noexcept { return bytes_.size() - position_; }
  const std::byte* data() const noexcept { return bytes_.data() + position_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_;
};

/// The value of one key whose bytes have been checked: a scalar or string is an array of one.
struct GgufValue {
  bool is_array = false;
  GgufType element_type = GgufType::kUint8;
  std::uint64_t count = 1;
  GgufCursor cursor;  ///< at the first element

  GgufType type() const noexcept { return is_array ? GgufType::kArray : element_type; }
  /// Returns "uint32", "array of string", ...
  std::string TypeText() const;
};

/// Reads one checked element and advances `cursor`.
std::string_view TakeString(GgufCursor* cursor) noexcept;
/// Reads a bool; any byte but 0 is true.
bool TakeBool(GgufCursor* cursor) noexcept;
/// Reads a number of an integer type; returns nothing if it does not fit.
std::optional<std::int64_t> TakeInt(GgufType type, GgufCursor* cursor) noexcept;
/// Reads a number of any type, rounded to double.
double TakeFloat(GgufType type, GgufCursor* cursor) noexcept;
/// Returns the value in one printable line; long strings and arrays are shortened.
std::string DescribeValue(GgufValue value);

}  // namespace manyhead
