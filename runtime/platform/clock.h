#pragma once

#include <chrono>
#include <cstdint>

namespace manyhead {

/// Nanoseconds of the monotonic clock.
inline std::int64_t SteadyNanoseconds() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace manyhead
