#include "runtime/text/utf8.h"

#include <algorithm>
#include <cstdint>

namespace manyhead {
namespace {

/// The facts that a lead byte states: the number of bytes, and the range of the second one, which
/// excludes overlong forms, surrogates and values that are too large. Length 0: no lead byte.
struct LeadByte {
  std::size_t length = 0;
  std::uint8_t second_min = 0x80;
  std::uint8_t second_max = 0xBF;
};

LeadByte LeadByteOf(std::uint8_t byte) noexcept {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

/// Returns how many of the `lead.length` bytes are present and valid, counted from the lead byte.
std::size_t MatchedBytes(std::string_view text, const LeadByte& lead) noexcept {
  const std::size_t limit = std::min(lead.length, text.size());
  for (std::size_t i = 1; i < limit; ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const std::uint8_t low = i == 1 ? lead.second_min : 0x80;
    const std::uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return i;
  }
  return limit;
}

}  // namespace

std::size_t Utf8CharLength(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const LeadByte lead = LeadByteOf(static_cast<std::uint8_t>(text[0]));
  return MatchedBytes(text, lead) == lead.length ? lead.length : 0;
}

std::size_t Utf8ValidPrefix(std::string_view text) noexcept {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = Utf8CharLength(text.substr(end));
    if (length == 0) break;
    end += length;
  }
  return end;
}

std::size_t Utf8UnfinishedTail(std::string_view text) noexcept {
  const std::size_t longest = std::min<std::size_t>(3, text.size());
  for (std::size_t tail = 1; tail <= longest; ++tail) {
    const std::string_view rest = text.substr(text.size() - tail);
    const LeadByte lead = LeadByteOf(static_cast<std::uint8_t>(rest[0]));
    if (lead.length > tail && MatchedBytes(rest, lead) == tail) return tail;
  }
  return 0;
}

}  // namespace manyhead
