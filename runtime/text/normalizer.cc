#include "runtime/text/normalizer.h"

#include <cstdint>
#include <utility>

#include "runtime/text/unicode.h"
#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

bool IsAscii(char c) { return static_cast<std::uint8_t>(c) < 0x80; }

/// Returns true where every character of `text` comes before U+0300: such text is already composed.
bool IsBelowMarks(std::string_view text) {
  for (const char c : text)
    if (static_cast<std::uint8_t>(c) >= 0xCC) return false;
  return true;
}

/// Returns the end of the part that begins at `begin`: no character after it joins one before it.
/// ASCII characters never join the character before them.
std::size_t StretchEnd(std::string_view text, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < text.size() && !IsAscii(text[end])) ++end;
  return end;
}

/// Appends the composed form of `text`; invalid bytes are copied.
void AppendStretch(std::string_view text, std::string* out) {
  while (!text.empty()) {
    const std::size_t valid = Utf8ValidPrefix(text);
    if (valid > 0) out->append(ToNormalForm(NormalForm::kNfc, text.substr(0, valid)));
    text.remove_prefix(valid);
    if (text.empty()) return;
    out->push_back(text.front());
    text.remove_prefix(1);
  }
}

}  // namespace

std::string_view ToNfc(std::string_view text, std::string* storage) {
  if (IsBelowMarks(text)) return text;
  std::string composed;
  composed.reserve(text.size());
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = StretchEnd(text, begin);
    const std::string_view stretch = text.substr(begin, end - begin);
    if (IsBelowMarks(stretch)) {
      composed.append(stretch);
    } else {
      AppendStretch(stretch, &composed);
    }
    begin = end;
  }
  *storage = std::move(composed);
  return *storage;
}

}  // namespace manyhead
