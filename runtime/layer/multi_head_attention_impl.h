#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/vector_kernels.h"
#include "manyhead/multi_head_attention.h"
#include "runtime/layer/attention_block.h"
#include "runtime/linear/linear.h"
#include "runtime/platform/aligned_buffer.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// The implementation of the layer's public calls.
struct MultiHeadAttention::Impl {
 public:
  /// The tokens of one call, and the source of their keys and values.
  struct Call {
    const char* function = nullptr;  ///< begins the message of an error
    std::int64_t q_len = 0;
    std::int64_t kv_len = 0;
    std::int64_t position = 0;  ///< position of the first query
    const float* x = nullptr;
    const float* memory = nullptr;  ///< memory of cross attention; null: that of an earlier call
    float* out = nullptr;
    ForwardOptions options = {};
    KvCache* cache = nullptr;  ///< cache that stores keys and values; null: only for this call
    std::int64_t layer = 0;
    SequenceId sequence{};
  };

  /// Creates the layer; `params` must be resolved and checked, `weights` must have the right sizes.
  static Result<std::unique_ptr<Impl>> Create(const MultiHeadAttentionParams& params,
                                              const MultiHeadAttentionWeights& weights);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Runs self attention; like the others it checks everything before anything is written.
  Status RunSelf(const Call& call) noexcept;
  Status RunCross(const Call& call) noexcept;
  /// Runs self attention over a cache, which gives kv_len and position of `call`.
  Status RunCached(const Call& call) noexcept;

  const MultiHeadAttentionParams& params() const noexcept { return params_; }
  bool is_cross() const noexcept { return params_.memory_dim > 0; }
  std::int64_t scratch_bytes() const noexcept;

  /// Serialises the public calls, which several threads may make at once.
  std::mutex turn;
  std::optional<KvCache> own_cache;
  SequenceId own_sequence{};
  std::int64_t memory_len = -1;  ///< tokens of the memory that was kept; -1: none yet

 private:
  struct Projection {
    AlignedBuffer<std::byte> copy;
    WeightView weight;
    std::vector<float> bias;

    Projection(const ProjectionWeights& weights, std::int64_t rows, std::int64_t cols, bool copied);
    /// Returns the bias from output `row` on, or null.
    const float* BiasFrom(std::int64_t row) const noexcept {
      return bias.empty() ? nullptr : bias.data() + row;
    }
  };
  /// The rows of a matrix of activations.
  struct Rows {
    const float* data;
    std::int64_t stride;
    std::int64_t count;
  };

  Impl(const MultiHeadAttentionParams& params, const MultiHeadAttentionWeights& weights);
  Status CreateRope();
  Status CreatePlans();
  Status CreateLinear();
  Status CreateOwnCache();
  void AllocateBuffers();

  Status CheckKind(const Call& call, bool cross) const noexcept;
  Status CheckCache(const Call& call) const noexcept;
  Status CheckRows(const Call& call) const noexcept;
  Status Run(const Call& call) noexcept;
  /// Return the rows of x, and those of the memory or, without one, of x again.
  LinearRows QueryRows(const Call& call) const noexcept;
  LinearRows KvRowsOf(const Call& call) const noexcept;
  Status RunParallel(const Call& call) noexcept;
  Status RunSequential(const Call& call) noexcept;
  Status RunHead(const Call& call, std::int64_t head) noexcept;
  AttentionBlock Block() noexcept;
  void ProjectInputs(Worker& worker, const Call& call, const AttentionBlock& block) noexcept;
  void ProjectKeysByHead(Worker& worker, const Call& call) noexcept;
  void ProjectQueryHead(Worker& worker, const Call& call, std::int64_t head) noexcept;
  void SetAngles(Worker& worker, const Call& call) noexcept;
  void RotateRows(Worker& worker, const Call& call, std::int64_t count, float* heads) noexcept;
  void ReadKvHead(Worker& worker, const Call& call, std::int64_t head) noexcept;
  void ProjectOutput(Worker& worker, const Call& call, const AttentionBlock& block) noexcept;
  void ProjectTerm(Worker& worker, const Call& call, std::int64_t head, const Rows& rows,
                   float* term) noexcept;
  void AddTerm(Worker& worker, const Call& call, std::int64_t head, const float* term) noexcept;
  AttentionTensors TensorsOf(const Call& call) const noexcept;
  AttentionTensors TensorsOfHead(const Call& call, std::int64_t head) const noexcept;
  Rows KvSource(const Call& call) const noexcept;
  std::int64_t PaddedColumns(std::int64_t head, std::int64_t* first) const noexcept;

  MultiHeadAttentionParams params_;
  const kernels::VectorKernels* kernels_;
  Projection query_weights_, key_weights_, value_weights_, output_weights_;
  std::optional<Rope> rope_;
  // One plan; under `sequential` one for each head if they differ.
  std::vector<AttentionPlan> plans_;
  std::optional<LinearWorkspace> linear_;

  // T = max_q_len, S = max_kv_len.
  AlignedBuffer<float> query_;                  // [T, H*D]; sequential [T, D]
  AlignedBuffer<float> key_;                    // [T, K*D]; cross [S, K*D]
  AlignedBuffer<float> value_;                  // [T, K*Dv]; cross [S, K*Dv]
  AlignedBuffer<float> attended_;               // [T, H*Dv]; sequential [T, Dv]
  AlignedBuffer<float> head_key_, head_value_;  // sequential: [S, D], [S, Dv]
  AlignedBuffer<float> term_;                   // sequential: [T, d_model]
  // [T, columns] where a head does not consist of whole blocks of W_o.
  AlignedBuffer<float> padded_;
  AlignedBuffer<float> cosine_, sine_;  // [T, rotary_dim / 2]
};

}  // namespace manyhead
