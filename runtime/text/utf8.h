#pragma once

#include <cstddef>
#include <string_view>

namespace manyhead {

/// Returns the bytes of the valid UTF-8 character that `text` starts with, 1..4; 0 when it starts
/// with none. Overlong forms, surrogates and values above U+10FFFF are not valid.
std::size_t Utf8CharLength(std::string_view text) noexcept;

/// Returns the bytes of the longest prefix of `text` that is valid UTF-8.
std::size_t Utf8ValidPrefix(std::string_view text) noexcept;

/// Returns the bytes at the end of `text` that begin a character which more bytes could still
/// complete, 0..3.
std::size_t Utf8UnfinishedTail(std::string_view text) noexcept;

}  // namespace manyhead
