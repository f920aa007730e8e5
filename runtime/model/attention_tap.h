#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// What one layer's attention made of a step: one request, whose keys and values are still as
/// attention read them.
struct AttentionStep {
  std::int64_t layer = 0;
  std::int64_t position = 0;         ///< of the first row
  std::int64_t rows = 0;             ///< T
  const float* query = nullptr;      ///< [T, H, D] as attention got them
  const float* lse = nullptr;        ///< [T, H]
  const float* attended = nullptr;   ///< [T, H, Dv] as the projection got them
  const float* projected = nullptr;  ///< [T, d] before a norm, if the family has one
  const AttentionPlan::Impl* plan = nullptr;
};

/// Looks at every layer's attention from within the decoder's region.
class AttentionTap {
 public:
  virtual ~AttentionTap() = default;

  /// Called by every thread once a layer's attention is projected. What step points to stays as it
  /// is until all have returned from it, if one has to wait for others: an implementation that
  /// reads after the first thread has left ends with a barrier.
  virtual void Observe(Worker& worker, const AttentionStep& step) noexcept = 0;

  /// Where plans add nanoseconds, [threads][head_times_stride()]; null: nowhere.
  virtual std::int64_t* head_times() noexcept = 0;
  virtual std::int64_t head_times_stride() const noexcept = 0;
};

}  // namespace manyhead
