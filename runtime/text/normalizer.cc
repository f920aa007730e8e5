#include "runtime/text/normalizer.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

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

/// Appends the composed form of `text`, which is valid UTF-8.
void AppendComposed(std::string_view text, std::string* out) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) {
    out->append(text);
  } else {
    out->append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
  }
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
    if (valid > 0) AppendComposed(text.substr(0, valid), out);
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
