#pragma once

#include <cstdint>
#include <vector>

namespace manyhead {

/// What happens to the attended rows of one layer before W_O, and which KV heads nobody reads.
struct HeadEdits {
  struct Edit {
    std::int64_t begin = 0;     ///< in a row [H * Dv]
    std::int64_t count = 0;     ///< numbers of the row
    float scale = 0;            ///< of what attention gave; 0 replaces whatever that was
    std::vector<float> mean{};  ///< [count], in place of what attention gave; empty: none
  };
  std::vector<Edit> edits{};
  std::vector<bool> unread{};  ///< [K], or empty: none; the cache has them off
};

}  // namespace manyhead
