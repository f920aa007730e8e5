#pragma once

#include <cstdint>
#include <mutex>
#include <span>

#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"
#include "runtime/attention/check_inputs.h"
#include "runtime/attention/head_times.h"
#include "runtime/attention/scratch.h"
#include "runtime/attention/setup.h"
#include "runtime/attention/step_requests.h"
#include "runtime/attention/weights.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// An AttentionPlan for code that runs its own parallel region: Prepare once per step and layer
/// shape, outside the region, then RunOn for each layer of that shape, on every thread. It joins
/// the parts of this room: validation (plan_params.h, check_inputs.h), the step's requests and
/// their work (step_requests.h, partition.h), execution (run.h), inspection (weights.h, explain.h)
/// and timing (head_times.h).
///
/// How work is cut, and why that shows in no bit, is AttentionPartition's.
struct AttentionPlan::Impl {
 public:
  /// `params` are valid, and resolved: no 0 that stands for a default, isa set.
  explicit Impl(const AttentionParams& params)
      : setup_(params), scratch_(setup_), requests_(setup_), times_(params) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Held by the public calls, which host threads may make at once, from Prepare to the end.
  std::mutex& turn() noexcept { return turn_; }

  const AttentionParams& params() const noexcept { return setup_.params; }
  std::int64_t scratch_bytes() const noexcept { return ScratchBytes(params()); }
  /// Returns what a plan of `params`, which are valid and resolved, is going to allocate.
  static std::int64_t ScratchBytes(const AttentionParams& params) noexcept {
    return AttentionScratchMemory::Bytes(params) + AttentionStepRequests::Bytes(params) +
           AttentionHeadTimes::Bytes(params);
  }

  /// Checks everything about the next RunOn calls but their layer's shape, and cuts the work.
  /// `function` begins the message of an error.
  Status Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                 const std::int64_t* qo_indptr, const AttentionBias& bias,
                 const char* function) noexcept {
    times_.Clear();
    return requests_.Prepare(cache, sequences, qo_indptr, bias, function);
  }
  /// `tensors` lives until the last RunOn.
  Status Prepare(const AttentionTensors& tensors, const char* function) noexcept {
    times_.Clear();
    return requests_.Prepare(tensors, function);
  }

  /// Checks that this plan's shape is that of `layer`.
  Status CheckLayer(const KvCache& cache, std::int64_t layer, const char* function) const noexcept {
    return CheckAttentionLayer(params(), cache, layer, function);
  }

  /// Returns the query tokens of the last Prepare.
  std::int64_t q_len() const noexcept { return requests_.q_len(); }

  /// Attention of what Prepare saw, over `layer` of its cache (ignored for plain tensors, whose own
  /// views are the right arguments). Every thread of a team of at most params().threads calls it
  /// with the same arguments; ends with a barrier. The sequences' lengths are still those that
  /// Prepare saw. lse.data may be null.
  void RunOn(Worker& worker, std::int64_t layer, const TensorView<const float>& q,
             const TensorView<float>& out, const TensorView<float>& lse) noexcept;
  /// Does the same for dense q [T, H, D], out [T, H, Dv], lse [T, H].
  void RunOn(Worker& worker, std::int64_t layer, const float* q, float* out, float* lse) noexcept;

  /// Returns the reader of the weights with which the last RunOn attended.
  AttentionWeights weights() const noexcept { return {setup_, requests_, scratch_}; }

  /// Computes the weights with which the last RunOn, over `layer`, attended: those of KV head
  /// `head` at query `query` of request `request`. Dense q [T, H, D], lse [T, H] of that run. The
  /// threads of a team call it, each with its index, before anything is appended or evicted.
  ///
  /// lse is rounded to float, which affects the sum of a row where logits are large: the weights
  /// are divided by the sum, so that with the sink logit's share they sum to 1. A row without keys
  /// is 0.
  SeenKeys WeightsOf(int thread, std::int64_t layer, std::int64_t request, std::int64_t head,
                     std::int64_t query, const float* q, const float* lse,
                     const AttentionRows& to) const noexcept {
    return weights().OfQuery(thread, layer, request, head, query, q, lse, to);
  }
  /// Returns the share of head `head`'s sink logit in a row; 0 without one.
  float SinkShare(std::int64_t head, float lse) const noexcept {
    return weights().SinkShare(head, lse);
  }
  /// Returns the bytes of keys and values of KV head `head` in `layer` that the queries of
  /// `request` see.
  std::int64_t BytesSeen(std::int64_t layer, std::int64_t request,
                         std::int64_t head) const noexcept {
    return weights().BytesSeen(layer, request, head);
  }

  /// Until the next Prepare each thread adds the nanoseconds that it works on KV head h of request
  /// `request` to nanoseconds[thread * stride + h]; null = off.
  void TimeHeads(std::int64_t request, std::int64_t* nanoseconds, std::int64_t stride) noexcept {
    times_.Time(request, nanoseconds, stride);
  }

  /// Returns how a run of one request of these lengths is done; see AttentionPlan::Explain.
  AttentionExplanation Explain(KvType k_type, KvType v_type, std::int64_t q_len,
                               std::int64_t kv_len) const;

 private:
  std::mutex turn_;
  AttentionSetup setup_;
  AttentionScratchMemory scratch_;
  AttentionStepRequests requests_;
  AttentionHeadTimes times_;
};

}  // namespace manyhead
