#pragma once

#include <cstdint>
#include <vector>

namespace manyhead::cli {

/// One evaluation of a part of a text: the tokens [begin, end), of which those from first_scored on
/// are scored.
struct NllWindow {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first_scored = 0;
  bool add_bos = false;  ///< the begin token precedes the tokens
};

/// Returns the windows over `tokens` tokens for a context of `context` >= 4: every token but the
/// first is scored once, and from the second window on with at least context / 2 - 1 tokens before
/// it. `with_bos` says that the text begins with a begin token; then every window does.
std::vector<NllWindow> NllWindows(std::int64_t tokens, std::int64_t context, bool with_bos);

}  // namespace manyhead::cli
