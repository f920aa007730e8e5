#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/attention.h"
#include "runtime/attention/partition.h"
#include "runtime/platform/clock.h"

namespace manyhead {

/// Measures how long threads work on each KV head of the requests that are timed.
class AttentionHeadTimes {
 public:
  explicit AttentionHeadTimes(const AttentionParams& params)
      : places_(static_cast<std::size_t>(params.max_q_len)) {}

  /// Returns the bytes that it allocates for a plan of `params`.
  static std::int64_t Bytes(const AttentionParams& params) noexcept {
    return params.max_q_len * static_cast<std::int64_t>(sizeof(Place));
  }

  /// Clears the set of requests that are timed.
  void Clear() noexcept {
    if (is_on_) std::fill(places_.begin(), places_.end(), Place());
    is_on_ = false;
  }
  /// Makes thread t add its time for head h of `request` to nanoseconds[t * stride + h]; null =
  /// off.
  void Time(std::int64_t request, std::int64_t* nanoseconds, std::int64_t stride) noexcept {
    places_[static_cast<std::size_t>(request)] = {nanoseconds, stride};
    is_on_ |= nanoseconds != nullptr;
  }

  /// Calls `item`, which returns its work, and measures its time where any request is timed.
  /// `requests` begins with the first request of the step.
  template <class Fn>
  void Run(int thread, const AttentionRequest* requests, const Fn& item) const noexcept {
    if (!is_on_) {
      item();
      return;
    }
    const std::int64_t begin = SteadyNanoseconds();
    const AttentionWork work = item();
    const Place& place = places_[static_cast<std::size_t>(work.request - requests)];
    if (place.nanoseconds != nullptr)
      place.nanoseconds[thread * place.stride + work.head] += SteadyNanoseconds() - begin;
  }

 private:
  struct Place {
    std::int64_t* nanoseconds = nullptr;
    std::int64_t stride = 0;
  };
  std::vector<Place> places_;  ///< [request]
  bool is_on_ = false;
};

}  // namespace manyhead
