#pragma once

#include <chrono>
#include <cstdint>

namespace manyhead {

/// Returns the time of the monotonic clock in nanoseconds.
inline std::int64_t SteadyNanoseconds() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace manyhead
