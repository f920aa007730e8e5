#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// What one layer's attention made of one sequence of a step, whose keys and values are still as
/// attention read them.
struct AttentionStep {
  std::int64_t layer = 0;
  SequenceId sequence{};             ///< of the step's cache
  std::int64_t position = 0;         ///< of the first row
  std::int64_t rows = 0;             ///< T
  const float* query = nullptr;      ///< [T, H, D] as attention got them
  const float* lse = nullptr;        ///< [T, H]
  const float* attended = nullptr;   ///< [T, H, Dv] as the projection got them
  const float* projected = nullptr;  ///< [T, d] before a norm, if the family has one
  const AttentionPlan::Impl* plan = nullptr;
  std::int64_t request = 0;    ///< of the plan
  std::int64_t first_row = 0;  ///< of the sequence, among the rows of the step

  /// The weights of KV head `kv_head` at row `row`; see AttentionPlan::Impl::WeightsOf.
  SeenKeys WeightsOf(int thread, std::int64_t kv_head, std::int64_t row,
                     const AttentionRows& to) const noexcept {
    const AttentionParams& params = plan->params();
    return plan->WeightsOf(thread, layer, request, kv_head, row,
                           query - first_row * params.num_heads * params.head_dim,
                           lse - first_row * params.num_heads, to);
  }
  /// Bytes of keys and values of KV head `kv_head` that the rows see.
  std::int64_t BytesSeen(std::int64_t kv_head) const noexcept {
    return plan->BytesSeen(layer, request, kv_head);
  }
};

/// Looks at every layer's attention to one sequence from within the decoder's region.
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
