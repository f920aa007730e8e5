#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace manyhead {

/// Properties of characters, as the Unicode Character Database has them.

bool IsWhiteSpace(char32_t c) noexcept;     ///< the property White_Space
bool IsMark(char32_t c) noexcept;           ///< the category M
bool IsSpacelessMark(char32_t c) noexcept;  ///< the category Mn
bool IsNumber(char32_t c) noexcept;         ///< the category N
bool IsPunctuation(char32_t c) noexcept;    ///< the category P
bool IsOther(char32_t c) noexcept;          ///< the category C
/// Letters, marks, decimal digits, connectors and joiners: what \w means in Unicode expressions.
bool IsWordChar(char32_t c) noexcept;

/// Returns the character that valid UTF-8 `text`, which is not empty, begins with; `size` becomes
/// its bytes.
char32_t FirstChar(std::string_view text, std::size_t* size) noexcept;
/// Returns the character that valid UTF-8 `text`, which is not empty, ends with.
char32_t LastChar(std::string_view text) noexcept;
void AppendChar(char32_t c, std::string* out);

/// Returns the text in small letters, character by character.
std::string ToLower(std::string_view text);

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Returns valid UTF-8 `text` in one of Unicode's forms.
/// Memory   throws bad_alloc.
/// Source   Unicode Standard Annex 15
std::string ToNormalForm(NormalForm form, std::string_view text);

}  // namespace manyhead
