#pragma once

#include <string>
#include <string_view>

namespace manyhead {

/// Returns `text` in Unicode's composed form NFC, in which a letter and the marks after it are one
/// character where there is one: "e" and U+0301 become U+00E9. Bytes that are not valid UTF-8 stay
/// as they are.
///
/// Memory   the result is `text` itself where nothing changes, else it lies in `*storage`. Throws
///          bad_alloc.
/// Source   Unicode Standard Annex 15
std::string_view ToNfc(std::string_view text, std::string* storage);

}  // namespace manyhead
