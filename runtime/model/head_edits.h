#pragma once

#include <cstdint>
#include <vector>

namespace manyhead {

/// Changes to the attended rows of one layer before W_O, and the KV heads that no query reads.
struct HeadEdits {
  struct Edit {
    std::int64_t begin = 0;  ///< first number in a row [H * Dv]
    std::int64_t count = 0;  ///< numbers of the row
    float scale = 0;  ///< factor on the result of attention; 0 replaces any value, NaN included
    std::vector<float> mean{};  ///< [count], replaces the result of attention; empty: none
  };
  std::vector<Edit> edits{};
  std::vector<bool> unread{};  ///< [K], or empty: none; these heads are off in the cache
};

}  // namespace manyhead
