#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace manyhead {

/// Returns `text` as one line that is safe for a terminal and a log: control characters, line
/// separators, marks that change the writing direction and bytes that are not UTF-8 become \xNN; a
/// backslash stays. Bytes after the first `max_bytes` are replaced by "...".
std::string Printable(std::string_view text, std::size_t max_bytes = 80);

}  // namespace manyhead
