#include "runtime/formats/gguf_value.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>

#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

struct TypeRow {
  const char* name;
  std::size_t bytes;
};

// The rows are in the order of the type numbers.
constexpr TypeRow kTypes[] = {{"uint8", 1},  {"int8", 1},  {"uint16", 2},  {"int16", 2},
                              {"uint32", 4}, {"int32", 4}, {"float32", 4}, {"bool", 1},
                              {"string", 0}, {"array", 0}, {"uint64", 8},  {"int64", 8},
                              {"float64", 8}};

template <class T>
T TakeAs(GgufCursor* cursor) noexcept {
  T value = 0;
  cursor->Take(&value);
  return value;
}

std::string DescribeElement(GgufType type, GgufCursor* cursor) {
  constexpr std::size_t kMaxStringBytes = 60;
  char text[32] = {};
  switch (type) {
    case GgufType::kString:
      return Printable(TakeString(cursor), kMaxStringBytes);
    case GgufType::kBool:
      return TakeAs<std::uint8_t>(cursor) != 0 ? "true" : "false";
    case GgufType::kUint64:
      return std::to_string(TakeAs<std::uint64_t>(cursor));
    case GgufType::kFloat32:
      std::snprintf(text, sizeof text, "%.9g", TakeFloat(type, cursor));
      return text;
    case GgufType::kFloat64:
      std::snprintf(text, sizeof text, "%.17g", TakeFloat(type, cursor));
      return text;
    default:
      return std::to_string(TakeInt(type, cursor).value_or(0));
  }
}

}  // namespace

const char* GgufTypeName(GgufType type) noexcept {
  const auto number = static_cast<std::size_t>(type);
  return number < std::size(kTypes) ? kTypes[number].name : "?";
}

bool IsInteger(GgufType type) noexcept {
  return IsNumber(type) && type != GgufType::kFloat32 && type != GgufType::kFloat64;
}

bool IsNumber(GgufType type) noexcept {
  return type != GgufType::kBool && type != GgufType::kString && type != GgufType::kArray;
}

std::optional<std::size_t> GgufScalarBytes(std::uint32_t type) noexcept {
  if (type >= std::size(kTypes)) return std::nullopt;
  return kTypes[type].bytes;
}

bool GgufCursor::TakeString(std::string_view* text) noexcept {
  std::uint64_t length = 0;
  const std::size_t start = position_;
  if (!Take(&length) || length > remaining()) {
    position_ = start;
    return false;
  }
  *text = {reinterpret_cast<const char*>(data()), static_cast<std::size_t>(length)};
  position_ += static_cast<std::size_t>(length);
  return true;
}

bool GgufCursor::Skip(std::uint64_t num_bytes) noexcept {
  if (num_bytes > remaining()) return false;
  position_ += static_cast<std::size_t>(num_bytes);
  return true;
}

std::string GgufValue::TypeText() const {
  return (is_array ? "array of " : "") + std::string(GgufTypeName(element_type));
}

std::string_view TakeString(GgufCursor* cursor) noexcept {
  std::string_view text;
  cursor->TakeString(&text);
  return text;
}

bool TakeBool(GgufCursor* cursor) noexcept { return TakeAs<std::uint8_t>(cursor) != 0; }

std::optional<std::int64_t> TakeInt(GgufType type, GgufCursor* cursor) noexcept {
  switch (type) {
    case GgufType::kUint8:
      return TakeAs<std::uint8_t>(cursor);
    case GgufType::kInt8:
      return TakeAs<std::int8_t>(cursor);
    case GgufType::kUint16:
      return TakeAs<std::uint16_t>(cursor);
    case GgufType::kInt16:
      return TakeAs<std::int16_t>(cursor);
    case GgufType::kUint32:
      return TakeAs<std::uint32_t>(cursor);
    case GgufType::kInt32:
      return TakeAs<std::int32_t>(cursor);
    case GgufType::kInt64:
      return TakeAs<std::int64_t>(cursor);
    case GgufType::kUint64: {
      const auto value = TakeAs<std::uint64_t>(cursor);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
      return static_cast<std::int64_t>(value);
    }
    default:
      return {};
  }
}

double TakeFloat(GgufType type, GgufCursor* cursor) noexcept {
  switch (type) {
    case GgufType::kFloat32:
      return static_cast<double>(TakeAs<float>(cursor));
    case GgufType::kFloat64:
      return TakeAs<double>(cursor);
    case GgufType::kUint64:
      return static_cast<double>(TakeAs<std::uint64_t>(cursor));
    default:
      return static_cast<double>(TakeInt(type, cursor).value_or(0));
  }
}

std::string DescribeValue(GgufValue value) {
  if (!value.is_array) return DescribeElement(value.element_type, &value.cursor);
  constexpr std::uint64_t kMaxElements = 4;
  std::string text = "[";
  const std::uint64_t shown = std::min(value.count, kMaxElements);
  for (std::uint64_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += DescribeElement(value.element_type, &value.cursor);
  }
  if (value.count > shown) text += ", ... " + std::to_string(value.count) + " in all";
  return text + "]";
}

}  // namespace manyhead
