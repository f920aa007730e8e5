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

/// The weights of a projection y = weight x + bias.
struct ProjectionWeights {
  WeightType type = WeightType::kF32;  ///< type of `data`
  /// [outputs, inputs], dense in blocks of `type`, laid out as in GGUF.
  std::span<const std::byte> data = {};
  std::span<const float> bias = {};  ///< [outputs] or empty
};

/// Makes ProjectionWeights of plain f32 numbers.
inline ProjectionWeights F32Weights(std::span<const float> weight,
                                    std::span<const float> bias = {}) {
  return {WeightType::kF32, std::as_bytes(weight), bias};
}

/// The four projections of a layer; M is memory_dim or, if that is 0, d_model.
struct MultiHeadAttentionWeights {
  ProjectionWeights query = {};   ///< W_q [H*D, d_model]
  ProjectionWeights key = {};     ///< W_k [K*D, M]
  ProjectionWeights value = {};   ///< W_v [K*Dv, M]
  ProjectionWeights output = {};  ///< W_o [d_model, H*Dv]
};

/// Shapes and options of a MultiHeadAttention.
struct MultiHeadAttentionParams {
  std::int64_t d_model = 0;  ///< elements of an input token
  /// Above 0 it selects cross attention: keys and values come from a memory whose tokens have this
  /// many elements. A memory has no order, so causal and rope must be off.
  std::int64_t memory_dim = 0;
  /// Parameters as for an AttentionPlan, with more defaults: num_kv_heads 0 selects num_heads,
  /// head_dim 0 selects d_model / num_heads, max_kv_len 0 selects max_q_len.
  AttentionParams attention = {};
  /// Rotation of queries and keys; rotary_dim 0 selects head_dim.
  std::optional<RopeConfig> rope = {};
  /// The first tokens of a sequence are multiplied more accurately, as kFast says of a model.
  MathMode math = MathMode::kExact;
  /// Computes one head after the other, each with its own slices of the weights, and adds up their
  /// terms. It serves inspection: the result is the same but for the order of that sum, at a lower
  /// speed.
  bool sequential = false;
  /// Otherwise the weights must outlive the layer; biases are always copied.
  bool copy_weights = false;
  /// Creates the cache that Append uses; it occupies memory only for tokens it holds.
  bool own_cache = false;
  KvType k_type = KvType::kF32;  ///< type of keys in the own cache
  KvType v_type = KvType::kF32;  ///< type of values in the own cache
};

/// Destinations of what each head contributes; null where it is not wanted.
struct HeadOutputs {
  float* heads = nullptr;  ///< [H, q_len, Dv], head_h, the output of attention
  float* terms = nullptr;  ///< [H, q_len, d_model], head_h W_h: their sum and the bias make `out`
};

/// Optional inputs and outputs of one Forward.
struct ForwardOptions {
  AttentionBias bias = {};        ///< bias of the single request: batch strides are ignored
  HeadOutputs head_outputs = {};  ///< destinations of what each head contributes
  /// Role in which x is evaluated; by default one token is a decode step, and more are a prompt. A
  /// memory always is a prompt.
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
///          outputs and caches are then unchanged. Create throws bad_alloc.
/// Threads  several threads may call; the calls of one layer, which owns scratch memory and cache,
///          are serialised. Nothing is allocated after Create, except what oneDNN allocates and
///          frees inside products of prompts.
/// Accuracy bitwise equal for every thread count on one instruction set. A token's result is also
///          the same whether its sequence comes as a whole or in chunks of any size, through a
///          cache of f32, as long as all have the same role: prompts and decode steps use different
///          products, whose sums differ by rounding. So do results with and without `sequential`,
///          and a sum of terms differs from `out`: each element by at most (H*Dv + H) * 2^-23 * sum
///          |W_o| |head|, and under kFast by the rounding of that mode.
/// Source   arXiv:1706.03762, section 3.2.2; grouped heads arXiv:2305.13245.
class MultiHeadAttention {
 public:
  /// Checks all arguments and allocates all memory.
  static Result<MultiHeadAttention> Create(const MultiHeadAttentionParams& params,
                                           const MultiHeadAttentionWeights& weights);
  MultiHeadAttention(MultiHeadAttention&&) noexcept;
  MultiHeadAttention& operator=(MultiHeadAttention&&) noexcept;
  ~MultiHeadAttention();

  /// Computes self attention over a whole sequence, whose first token has position 0.
  Status Forward(std::int64_t q_len, const float* x, float* out,
                 const ForwardOptions& options = {}) noexcept;

  /// Computes cross attention.
  Status Forward(std::int64_t q_len, const float* x, std::int64_t kv_len, const float* memory,
                 float* out, const ForwardOptions& options = {}) noexcept;

  /// Computes cross attention to the memory of the last call that gave one; its keys and values
  /// were kept.
  Status ForwardAgain(std::int64_t q_len, const float* x, float* out,
                      const ForwardOptions& options = {}) noexcept;

  /// Computes self attention of the last q_len tokens of `sequence`, for which the caller has
  /// reserved room: writes their keys and values into one layer of the cache and attends to all
  /// tokens that it holds.
  Status Forward(KvCache& cache, std::int64_t layer, SequenceId sequence, std::int64_t q_len,
                 const float* x, float* out, const ForwardOptions& options = {}) noexcept;

  /// Computes self attention of the next q_len tokens of the own cache's sequence.
  Status Append(std::int64_t q_len, const float* x, float* out,
                const ForwardOptions& options = {}) noexcept;
  /// Drops the tokens of the own cache from position `length` on.
  Status Truncate(std::int64_t length) noexcept;
  /// Number of tokens in the own cache; 0 without one.
  std::int64_t length() const noexcept;

  /// The shape of a KvCache layer that can serve this layer.
  KvLayerShape cache_shape() const noexcept;
  /// The parameters, with the defaults filled in.
  const MultiHeadAttentionParams& params() const noexcept;
  /// Bytes of activations, attention and products, without weights and cache.
  std::int64_t scratch_bytes() const noexcept;

 private:
  struct Impl;
  explicit MultiHeadAttention(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace manyhead
