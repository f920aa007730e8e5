#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_kernels.h"
#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"
#include "runtime/attention/partition.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// What the rows of one query see: keys [0, sinks) and [begin, end), some of which may be hidden or
/// not stored.
struct SeenKeys {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Where the attention weights of one KV head's query heads at one query go.
struct AttentionRows {
  float* weights = nullptr;  ///< [G] rows by key position
  std::int64_t stride = 0;   ///< elements from row to row
  std::int64_t length = 0;   ///< keys to write, all; 0: only those that SeenKeys names
  float* entropy = nullptr;  ///< [G] -sum w ln w, nats; or null
};

class AttentionKeySource;
class AttentionTileRows;

/// Whether attention has the same kernels on both: what one adds may serve other products only.
bool SameAttention(Isa a, Isa b) noexcept;

/// An AttentionPlan for code that runs its own parallel region: Prepare once per step and layer
/// shape, outside the region, then RunOn for each layer of that shape, on every thread.
///
/// How work is cut, and why that shows in no bit, is AttentionPartition's.
struct AttentionPlan::Impl {
 public:
  /// `params` are valid, and resolved: no 0 that stands for a default, isa set.
  explicit Impl(const AttentionParams& params);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Held by the public calls, which host threads may make at once, from Prepare to the end.
  std::mutex& turn() noexcept { return turn_; }

  const AttentionParams& params() const noexcept { return params_; }
  /// With the places of requests, of which there are as many as queries.
  std::int64_t scratch_bytes() const noexcept { return ScratchBytes(params_); }
  /// What a plan of `params`, which are valid and resolved, is going to take.
  static std::int64_t ScratchBytes(const AttentionParams& params) noexcept {
    const AttentionScratch scratch = AttentionScratchOf(params);
    return (params.threads * scratch.thread_floats + scratch.parts_floats) * kFloatBytes +
           params.max_q_len * static_cast<std::int64_t>(sizeof(Request));
  }

  /// Checks everything about the next RunOn calls but their layer's shape, and cuts the work.
  /// `function` begins the message of an error.
  Status Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                 const std::int64_t* qo_indptr, const AttentionBias& bias,
                 const char* function) noexcept;
  /// `tensors` lives until the last RunOn.
  Status Prepare(const AttentionTensors& tensors, const char* function) noexcept;

  /// Whether this plan's shape is that of `layer`.
  Status CheckLayer(const KvCache& cache, std::int64_t layer, const char* function) const noexcept;

  /// Query tokens of the last Prepare.
  std::int64_t q_len() const noexcept { return q_len_; }

  /// Attention of what Prepare saw, over `layer` of its cache (ignored for plain tensors, whose own
  /// views are the right arguments). Every thread of a team of at most params().threads calls it
  /// with the same arguments; ends with a barrier. The sequences' lengths are still those that
  /// Prepare saw. lse.data may be null.
  void RunOn(Worker& worker, std::int64_t layer, const TensorView<const float>& q,
             const TensorView<float>& out, const TensorView<float>& lse) noexcept;
  /// Dense q [T, H, D], out [T, H, Dv], lse [T, H].
  void RunOn(Worker& worker, std::int64_t layer, const float* q, float* out, float* lse) noexcept;

  /// Stage `stage` of the tensors that Prepare saw; see AttentionPlan::Weights.
  void WeightsOn(Worker& worker, LogitStage stage, float* weights) noexcept;

  /// The weights with which the last RunOn, over `layer`, attended: those of KV head `head` at
  /// query `query` of request `request`. Dense q [T, H, D], lse [T, H] of that run. Called by the
  /// threads of a team, each with its index, before anything is appended or evicted.
  ///
  /// lse is rounded to float, which for large logits shows in the sum of a row: the weights are
  /// divided by it, so that with the sink logit's share they sum to 1. A row without keys is 0.
  SeenKeys WeightsOf(int thread, std::int64_t layer, std::int64_t request, std::int64_t head,
                     std::int64_t query, const float* q, const float* lse,
                     const AttentionRows& to) const noexcept;
  /// The share of head `head`'s sink logit in a row; 0 without one.
  float SinkShare(std::int64_t head, float lse) const noexcept;
  /// Bytes of keys and values of KV head `head` in `layer` that the queries of `request` see.
  std::int64_t BytesSeen(std::int64_t layer, std::int64_t request,
                         std::int64_t head) const noexcept;
  /// Stage kProbs of the one request of Prepare over a cache: weights [H, q_len, kv_len].
  void CacheWeightsOn(Worker& worker, std::int64_t layer, const float* q, const float* lse,
                      float* weights) noexcept;

  /// Until the next Prepare each thread adds the nanoseconds that it works on KV head h of request
  /// `request` to nanoseconds[thread * stride + h]; null = off.
  void TimeHeads(std::int64_t request, std::int64_t* nanoseconds, std::int64_t stride) noexcept {
    requests_[static_cast<std::size_t>(request)].head_times = nanoseconds;
    requests_[static_cast<std::size_t>(request)].head_times_stride = stride;
  }

  AttentionExplanation Explain(KvType k_type, KvType v_type, std::int64_t q_len,
                               std::int64_t kv_len) const;

 private:
  friend class AttentionTileRows;
  friend class AttentionKeySource;

  static constexpr std::int64_t kFloatBytes = sizeof(float);

  using Request = AttentionRequest;

  /// One thread's memory.
  struct Scratch {
    float* q;
    float* probs;
    float* k;  ///< a block of keys as f32 tiles
    float* v;  ///< a block of values as f32 rows
    kernels::AttentionState total;
    kernels::AttentionState part;
  };

  struct Tensors {
    std::int64_t layer;
    const TensorView<const float>& q;
    const TensorView<float>& out;
    const TensorView<float>& lse;
  };

  std::int64_t group() const noexcept { return params_.num_heads / params_.num_kv_heads; }
  std::span<const Request> requests() const noexcept {
    return std::span(requests_).first(static_cast<std::size_t>(num_requests_));
  }
  kernels::AttentionState PartOf(const AttentionWork& work) const noexcept;
  Scratch ScratchOf(int thread) const noexcept;

  void Restart() noexcept { num_requests_ = q_len_ = items_ = merges_ = 0; }
  Status AddRequest(std::int64_t index, SequenceId sequence, std::int64_t q_len,
                    std::int64_t kv_len, std::int64_t position, const char* function) noexcept;
  Status CheckTensors(const AttentionTensors& tensors, const char* function) const noexcept;
  Status CutItems(const char* function) noexcept;

  /// Both return what they worked on.
  AttentionWork RunItem(const Tensors& tensors, const Scratch& scratch,
                        std::int64_t item) const noexcept;
  AttentionWork MergeTile(const Tensors& tensors, const Scratch& scratch,
                          std::int64_t item) const noexcept;
  /// Runs `item` by one of them, on the clock where the heads of a request are timed.
  template <class Fn>
  void RunTimed(int thread, bool timed, const Fn& item) const noexcept;
  /// The keys of one head of the cache; none of plain tensors.
  kernels::KvHeadView KeysOf(const Request& request, std::int64_t layer,
                             std::int64_t head) const noexcept;
  void Finish(const Tensors& tensors, const AttentionTileRows& rows,
              const AttentionKeySource& source, const Scratch& scratch) const noexcept;
  /// As large as divides a group.
  std::int64_t GroupTileRows() const noexcept;
  SeenKeys WeightsOfTile(const AttentionTileRows& rows, const AttentionKeySource& source,
                         const Scratch& scratch, const float* lse,
                         const AttentionRows& to) const noexcept;

  std::mutex turn_;
  AttentionParams params_;
  const kernels::AttentionKernels* kernels_;
  std::int64_t v_row_ = 0;  ///< Dv rounded up to a K tile
  AttentionPartition partition_;

  struct FreeScratch {
    void operator()(float* memory) const noexcept;
  };
  std::int64_t thread_floats_ = 0;
  std::int64_t parts_floats_ = 0;
  std::unique_ptr<float, FreeScratch> scratch_;  ///< threads' parts, then partial states

  // What the last Prepare saw.
  const KvCache* cache_ = nullptr;             ///< null: plain tensors
  const AttentionTensors* tensors_ = nullptr;  ///< null: a cache
  AttentionBias bias_;
  std::vector<Request> requests_;  ///< room for max_q_len
  std::int64_t num_requests_ = 0;
  std::int64_t q_len_ = 0;
  std::int64_t items_ = 0;
  std::int64_t merges_ = 0;
};

}  // namespace manyhead
