#include "runtime/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

namespace manyhead {
namespace {

utf8proc_category_t CategoryOf(char32_t c) noexcept {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

bool IsWhiteSpace(char32_t c) noexcept {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsMark(char32_t c) noexcept {
  const utf8proc_category_t category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool IsSpacelessMark(char32_t c) noexcept { return CategoryOf(c) == UTF8PROC_CATEGORY_MN; }

bool IsNumber(char32_t c) noexcept {
  const utf8proc_category_t category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) noexcept {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

bool IsOther(char32_t c) noexcept {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return true;
    default:
      return false;
  }
}

bool IsWordChar(char32_t c) noexcept {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
             (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);  // joiners; enclosed letters, which are alphabetic
  }
}

char32_t FirstChar(std::string_view text, std::size_t* size) noexcept {
  utf8proc_int32_t c = 0;
  const utf8proc_ssize_t read = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &c);
  *size = read > 0 ? static_cast<std::size_t>(read) : 1;
  return read > 0 ? static_cast<char32_t>(c) : U'\uFFFD';
}

char32_t LastChar(std::string_view text) noexcept {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  std::size_t size = 0;
  return FirstChar(text.substr(at), &size);
}

void AppendChar(char32_t c, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::string ToLower(std::string_view text) {
  constexpr char32_t kCapitalIWithDot = 0x130, kDotAbove = 0x307;
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
    const char32_t c = FirstChar(text.substr(at), &size);
    if (c == kCapitalIWithDot) {  // the one character whose small form is two
      AppendChar(U'i', &lower);
      AppendChar(kDotAbove, &lower);
    } else {
      AppendChar(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &lower);
    }
  }
  return lower;
}

std::string ToNormalForm(NormalForm form, std::string_view text) {
  unsigned options = UTF8PROC_STABLE;
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &made,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) return std::string(text);
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)};
}

}  // namespace manyhead
