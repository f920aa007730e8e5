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
  /// Values of one head at consecutive positions, written after the edits.
  struct Patch {
    std::int64_t begin = 0;     ///< first number in a row [H * Dv]
    std::int64_t width = 0;     ///< Dv
    std::int64_t position = 0;  ///< position of the first row of values
    std::vector<float> values{};

    /// Returns the row for the token at `at`, or null.
    const float* RowAt(std::int64_t at) const noexcept {
      const std::int64_t row = at - position, rows = std::ssize(values) / width;
      return row >= 0 && row < rows ? values.data() + row * width : nullptr;
    }
  };
  std::vector<Edit> edits{};
  std::vector<Patch> patches{};
  std::vector<bool> unread{};  ///< [K], or empty: none; these heads are off in the cache
};

}  // namespace manyhead
