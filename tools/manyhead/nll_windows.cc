#include "tools/manyhead/nll_windows.h"

#include <algorithm>

namespace manyhead::cli {

std::vector<NllWindow> NllWindows(std::int64_t tokens, std::int64_t context, bool with_bos) {
  std::vector<NllWindow> windows;
  windows.push_back({0, std::min(tokens, context), 1, false});
  const std::int64_t room = with_bos ? context - 1 : context;
  while (windows.back().end < tokens) {
    const std::int64_t scored = windows.back().end;
    const std::int64_t end = std::min(tokens, scored + context / 2);
    windows.push_back({end - room, end, scored, with_bos});
  }
  return windows;
}

}  // namespace manyhead::cli
