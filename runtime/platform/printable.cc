#include "runtime/platform/printable.h"

#include <cstdint>

namespace manyhead {
namespace {

/// Returns the number of bytes of the UTF-8 character that `text` starts with, 0 if there is none.
std::size_t CharacterLength(std::string_view text, std::uint32_t* code_point) {
  const auto lead = static_cast<unsigned char>(text[0]);
  std::size_t length = 1;
  std::uint32_t value = lead;
  if (lead >= 0x80) {
    if (lead >= 0xC2 && lead < 0xE0) {
      length = 2;
      value = lead & 0x1FU;
    } else if (lead >= 0xE0 && lead < 0xF0) {
      length = 3;
      value = lead & 0x0FU;
    } else if (lead >= 0xF0 && lead < 0xF5) {
      length = 4;
      value = lead & 0x07U;
    } else {
      return 0;
    }
  }
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0U) != 0x80U) return 0;
    value = value << 6 | (byte & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
  *code_point = value;
  return length;
}

bool ChangesTheTerminal(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200E && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

void AppendHex(unsigned char byte, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  out->append("\\x");
  out->push_back(kDigits[byte >> 4]);
  out->push_back(kDigits[byte & 15U]);
}

}  // namespace

std::string Printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint32_t code_point = 0;
    const std::size_t length = CharacterLength(text.substr(i), &code_point);
    const std::size_t step = length == 0 ? 1 : length;
    if (i + step > max_bytes) return out + "...";
    if (length == 0 || ChangesTheTerminal(code_point)) {
      for (char c : text.substr(i, step)) AppendHex(static_cast<unsigned char>(c), &out);
    } else {
      out.append(text, i, step);
    }
    i += step;
  }
  return out;
}

}  // namespace manyhead
