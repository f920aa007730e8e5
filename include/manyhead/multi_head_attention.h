#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "manyhead/attention.h"
#include "manyhead/export.h"
#include "manyhead/kinds.h"
#include "manyhead/kv_cache.h"
#include "manyhead/rope.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// y = weight x + bias.
struct ProjectionWeights {
  WeightType type = WeightType::kF32;  ///< of `data`
  /// [outputs, inputs] dense in blocks of `type`, as GGUF has it.
  std::span<const std::byte> data = {};
  std::span<const float> bias = {};  ///< [outputs] or empty
};

/// Plain f32 weights.
inline ProjectionWeights F32Weights(std::span<const float> weight,
                                    std::span<const float> bias = {}) {
  return {WeightType::kF32, std::as_bytes(weight), bias};
}

/// M = memory_dim or, without one, d_model.
struct MultiHeadAttentionWeights {
  ProjectionWeights query = {};   ///< W_q [H*D, d_model]
  ProjectionWeights key = {};     ///< W_k [K*D, M]
  ProjectionWeights value = {};   ///< W_v [K*Dv, M]
  ProjectionWeights output = {};  ///< W_o [d_model, H*Dv]
};

/// What a MultiHeadAttention is made for.
struct MultiHeadAttentionParams {
  std::int64_t d_model = 0;  ///< elements of an input token
  /// Above 0: cross attention; keys and values come from a memory whose tokens have so many
  /// elements. It has no order, so it goes without causal and rope.
  std::int64_t memory_dim = 0;
  /// As for an AttentionPlan, with more defaults: num_kv_heads 0 selects num_heads, head_dim 0
  /// selects d_model / num_heads, max_kv_len 0 selects max_q_len.
  AttentionParams attention = {};
  std::optional<RopeConfig> rope = {};  ///< of queries and keys; rotary_dim 0 selects head_dim
  /// kFast keeps int8 from a sequence's first token, as a model does.
  MathMode math = MathMode::kExact;
  /// Computes one head after the other, each with its own slices of the weights, and adds up their
  /// terms. For inspection: the same result but for the order of that sum, at a lower speed.
  bool sequential = false;
  bool copy_weights = false;     ///< otherwise their data must outlive the layer; biases are copied
  bool own_cache = false;        ///< for Append; it takes memory only for tokens it holds
  KvType k_type = KvType::kF32;  ///< of the own cache
  KvType v_type = KvType::kF32;  ///< likewise
};

/// What each head contributes. Null: not wanted.
struct HeadOutputs {
  float* heads = nullptr;  ///< [H, q_len, Dv], head_h, what attention gives
  float* terms = nullptr;  ///< [H, q_len, d_model], head_h W_h: their sum and the bias make `out`
};

/// What one Forward may use besides its input.
struct ForwardOptions {
  AttentionBias bias = {};        ///< of a single request: batch strides are ignored
  HeadOutputs head_outputs = {};  ///< what each head contributes
  /// What x is evaluated as; by default one token decodes, and more are a prompt. A memory always
  /// is a prompt.
  std::optional<RowRole> role = {};
};

/// Multi-head attention with its projections, for one request at a time:
///
///   out = W_o concat_h(head_h) + b_o,   head_h = attention(q_h, k_(h/G), v_(h/G)),
///   q = rope(W_q x + b_q), k = rope(W_k m + b_k), v = W_v m + b_v,   m = x or the memory.
///
/// Shapes   x, out [q_len, d_model], memory [kv_len, memory_dim], row-major and dense; q_len is at
///          most max_q_len, kv_len at most max_kv_len, and both may be 0.
/// Aliasing `out` and head outputs overlap no input.
/// Errors   kInvalidArgument, naming the parameter and both values; kOutOfPages from Append;
///          outputs and caches are then as they were. Create throws bad_alloc.
/// Threads  calls may come from several threads: those of one layer, which owns scratch memory and
///          cache, take turns. Nothing is allocated after Create, but for what oneDNN allocates
///          and frees inside products of prompts.
/// Accuracy bitwise equal for every thread count on one instruction set. A token's result is also
///          the same whether its sequence comes whole or in pieces of any size, through a cache of
///          f32, as long as all have the same role: prompts and decode steps take different
///          products, whose sums differ by rounding. So does `sequential` from its opposite, and a
///          sum of terms from `out`: each element by at most (H*Dv + H) * 2^-23 * sum |W_o| |head|,
///          and under kFast by as much as that rounds.
/// Source   arXiv:1706.03762, section 3.2.2; grouped heads arXiv:2305.13245.
class MultiHeadAttention {
 public:
  /// Checks everything and takes all memory.
  static Result<MultiHeadAttention> Create(const MultiHeadAttentionParams& params,
                                           const MultiHeadAttentionWeights& weights);
  MultiHeadAttention(MultiHeadAttention&&) noexcept;
  MultiHeadAttention& operator=(MultiHeadAttention&&) noexcept;
  ~MultiHeadAttention();

  /// Self attention over a whole sequence, whose first token has position 0.
  Status Forward(std::int64_t q_len, const float* x, float* out,
                 const ForwardOptions& options = {}) noexcept;

  /// Cross attention.
  Status Forward(std::int64_t q_len, const float* x, std::int64_t kv_len, const float* memory,
                 float* out, const ForwardOptions& options = {}) noexcept;

  /// Cross attention to the memory of the last call that gave one, whose keys and values are kept.
  Status ForwardAgain(std::int64_t q_len, const float* x, float* out,
                      const ForwardOptions& options = {}) noexcept;

  /// Self attention of the last q_len tokens of `sequence`, for which the caller has reserved room:
  /// writes their keys and values into one layer of the cache and attends to all that it holds.
  Status Forward(KvCache& cache, std::int64_t layer, SequenceId sequence, std::int64_t q_len,
                 const float* x, float* out, const ForwardOptions& options = {}) noexcept;

  /// Self attention of the next q_len tokens of the own cache's sequence.
  Status Append(std::int64_t q_len, const float* x, float* out,
                const ForwardOptions& options = {}) noexcept;
  /// Drops the tokens of the own cache from position `length` on.
  Status Truncate(std::int64_t length) noexcept;
  /// Tokens in the own cache; 0 without one.
  std::int64_t length() const noexcept;

  /// The layer of a KvCache that can serve this one.
  KvLayerShape cache_shape() const noexcept;
  /// With the defaults filled in.
  const MultiHeadAttentionParams& params() const noexcept;
  /// Of activations, attention and products; without weights and cache.
  std::int64_t scratch_bytes() const noexcept;

 private:
  struct Impl;
  explicit MultiHeadAttention(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace manyhead
