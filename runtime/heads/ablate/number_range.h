#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace manyhead {

/// Numbers first..last; last = -1: to the end.
struct NumberRange {
  std::int64_t first = 0;
  std::int64_t last = -1;
};

/// Reads "3", "3-5" or "*".
inline std::optional<NumberRange> ReadNumberRange(std::string_view text) {
  if (text == "*") return NumberRange();
  NumberRange range;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.first);
  if (first.ec != std::errc() || range.first < 0) return std::nullopt;
  range.last = range.first;
  if (first.ptr == end) return range;
  if (*first.ptr != '-') return std::nullopt;
  const auto last = std::from_chars(first.ptr + 1, end, range.last);
  if (last.ec != std::errc() || last.ptr != end || range.last < range.first) return std::nullopt;
  return range;
}

}  // namespace manyhead
