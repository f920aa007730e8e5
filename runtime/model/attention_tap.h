#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// The attention of one layer to one sequence of a step. Its keys and values are still those that
/// attention read.
struct AttentionStep {
  std::int64_t layer = 0;
  SequenceId sequence{};             ///< sequence of the step's cache
  std::int64_t position = 0;         ///< position of the first row
  std::int64_t rows = 0;             ///< T
  const float* query = nullptr;      ///< [T, H, D] queries as attention gets them
  const float* lse = nullptr;        ///< [T, H]
  const float* attended = nullptr;   ///< [T, H, Dv] results as the output projection gets them
  const float* projected = nullptr;  ///< [T, d] before a norm, if the model has one
  const AttentionPlan::Impl* plan = nullptr;
  std::int64_t request = 0;    ///< index of the request in the plan
  std::int64_t first_row = 0;  ///< first row of the sequence among the rows of the step

  /// Computes the weights of KV head `kv_head` at row `row`; see AttentionPlan::Impl::WeightsOf.
  SeenKeys WeightsOf(int thread, std::int64_t kv_head, std::int64_t row,
                     const AttentionRows& to) const noexcept {
    const AttentionParams& params = plan->params();
    return plan->WeightsOf(thread, layer, request, kv_head, row,
                           query - first_row * params.num_heads * params.head_dim,
                           lse - first_row * params.num_heads, to);
  }
  /// Returns the bytes of keys and values of KV head `kv_head` that the rows see.
  std::int64_t BytesSeen(std::int64_t kv_head) const noexcept {
    return plan->BytesSeen(layer, request, kv_head);
  }
};

/// Observes every layer's attention to one sequence, inside the decoder's parallel region.
class AttentionTap {
 public:
  virtual ~AttentionTap() = default;

  /// Called by every thread after a layer's attention has been projected. The data that `step`
  /// points to stays valid until all threads have returned, provided that one of them waits for
  /// others: an implementation that still reads after the first thread has left must end with a
  /// barrier.
  virtual void Observe(Worker& worker, const AttentionStep& step) noexcept = 0;

  /// Array [threads][head_times_stride()] to which plans add nanoseconds; null: no array.
  virtual std::int64_t* head_times() noexcept = 0;
  virtual std::int64_t head_times_stride() const noexcept = 0;
};

}  // namespace manyhead
