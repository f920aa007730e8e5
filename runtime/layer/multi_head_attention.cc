#include "manyhead/multi_head_attention.h"

#include <mutex>
#include <utility>

#include "runtime/layer/multi_head_attention_impl.h"
#include "runtime/platform/errors.h"

namespace manyhead {

namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;  // keeps sizes far from overflow
constexpr const char* kCreate = "MultiHeadAttention::Create";
constexpr const char* kForward = "MultiHeadAttention::Forward";

/// Fills in the layer's own defaults.
Status ResolveSizes(MultiHeadAttentionParams& params) {
  if (Status status = CheckRange(kCreate, "d_model", params.d_model, 1, kMaxDim); !status.ok())
    return status;
  if (Status status = CheckRange(kCreate, "memory_dim", params.memory_dim, 0, kMaxDim);
      !status.ok())
    return status;
  AttentionParams& attention = params.attention;
  if (attention.num_heads < 1)
    return InvalidArgument(kCreate, "num_heads = ", attention.num_heads, "; expected at least 1");
  if (attention.head_dim == 0) {
    if (params.d_model % attention.num_heads != 0)
      return InvalidArgument(kCreate, "d_model = ", params.d_model,
                             " is not a multiple of num_heads = ", attention.num_heads);
    attention.head_dim = params.d_model / attention.num_heads;
  }
  if (attention.num_kv_heads == 0) attention.num_kv_heads = attention.num_heads;
  if (attention.max_kv_len == 0) attention.max_kv_len = attention.max_q_len;
  return {};
}

/// Checks the options that cross attention excludes: a memory has no order, and is not appended to.
Status CheckCross(const MultiHeadAttentionParams& params) {
  if (params.memory_dim == 0) return {};
  const AttentionParams& attention = params.attention;
  const struct {
    bool given;
    const char* what;
  } refused[] = {
      {attention.causal, "causal = true"},
      {attention.window != 0 || attention.window_right.has_value(), "a window"},
      {!attention.alibi_slopes.empty(), "alibi_slopes"},
      {params.rope.has_value(), "rope"},
      {params.own_cache, "own_cache = true"},
  };
  for (const auto& [given, what] : refused)
    if (given)
      return InvalidArgument(kCreate, what, " with memory_dim = ", params.memory_dim,
                             "; expected none in cross attention");
  return {};
}

Status CheckProjection(const char* name, const ProjectionWeights& weights, std::int64_t rows,
                       std::int64_t cols) {
  const auto block = FindWeightBlock(static_cast<std::uint32_t>(weights.type));
  if (!block)
    return InvalidArgument(kCreate, name, " has type = ", static_cast<int>(weights.type),
                           "; expected a WeightType");
  if (cols % block->elements != 0)
    return InvalidArgument(kCreate, name, " [", rows, ", ", cols, "]: ", cols,
                           " is not a multiple of the block of ", WeightTypeName(weights.type),
                           " = ", block->elements);
  const std::int64_t bytes = rows * (cols / block->elements * block->bytes);
  if (static_cast<std::int64_t>(weights.data.size()) != bytes)
    return InvalidArgument(kCreate, name, " has ", weights.data.size(), " bytes; expected ", bytes,
                           " for [", rows, ", ", cols, "] of ", WeightTypeName(weights.type));
  if (!weights.bias.empty() && static_cast<std::int64_t>(weights.bias.size()) != rows)
    return InvalidArgument(kCreate, name, " has ", weights.bias.size(), " biases; expected ", rows,
                           " or none");
  return {};
}

Status CheckWeights(const MultiHeadAttentionParams& params,
                    const MultiHeadAttentionWeights& weights) {
  const AttentionParams& attention = params.attention;
  const std::int64_t memory = params.memory_dim > 0 ? params.memory_dim : params.d_model;
  const struct {
    const char* name;
    const ProjectionWeights& weights;
    std::int64_t rows, cols;
  } projections[] = {
      {"query", weights.query, attention.num_heads * attention.head_dim, params.d_model},
      {"key", weights.key, attention.num_kv_heads * attention.head_dim, memory},
      {"value", weights.value, attention.num_kv_heads * attention.head_dim_v, memory},
      {"output", weights.output, params.d_model, attention.num_heads * attention.head_dim_v},
  };
  for (const auto& [name, projection, rows, cols] : projections)
    if (Status status = CheckProjection(name, projection, rows, cols); !status.ok()) return status;
  return {};
}

}  // namespace

Result<MultiHeadAttention> MultiHeadAttention::Create(const MultiHeadAttentionParams& params,
                                                      const MultiHeadAttentionWeights& weights) {
  MultiHeadAttentionParams resolved = params;
  if (Status status = ResolveSizes(resolved); !status.ok()) return status;
  if (Status status = CheckCross(resolved); !status.ok()) return status;
  {
    // The plan checks its parameters and fills in their defaults.
    const Result<AttentionPlan> plan = AttentionPlan::Create(resolved.attention);
    if (!plan.ok()) return plan.status();
    resolved.attention = plan->params();
  }
  if (Status status = CheckWeights(resolved, weights); !status.ok()) return status;
  Result<std::unique_ptr<Impl>> impl = Impl::Create(resolved, weights);
  if (!impl.ok()) return impl.status();
  return MultiHeadAttention(*std::move(impl));
}

MultiHeadAttention::MultiHeadAttention(std::unique_ptr<Impl> impl) noexcept
    : impl_(std::move(impl)) {}
MultiHeadAttention::MultiHeadAttention(MultiHeadAttention&&) noexcept = default;
MultiHeadAttention& MultiHeadAttention::operator=(MultiHeadAttention&&) noexcept = default;
MultiHeadAttention::~MultiHeadAttention() = default;

const MultiHeadAttentionParams& MultiHeadAttention::params() const noexcept {
  return impl_->params();
}

std::int64_t MultiHeadAttention::scratch_bytes() const noexcept { return impl_->scratch_bytes(); }

KvLayerShape MultiHeadAttention::cache_shape() const noexcept {
  const AttentionParams& attention = params().attention;
  return {attention.num_kv_heads, attention.head_dim, attention.head_dim_v};
}

Status MultiHeadAttention::Forward(std::int64_t q_len, const float* x, float* out,
                                   const ForwardOptions& options) noexcept {
  const std::lock_guard turn(impl_->turn);
  return impl_->RunSelf({.function = kForward,
                         .q_len = q_len,
                         .kv_len = q_len,
                         .x = x,
                         .out = out,
                         .options = options});
}

Status MultiHeadAttention::Forward(std::int64_t q_len, const float* x, std::int64_t kv_len,
                                   const float* memory, float* out,
                                   const ForwardOptions& options) noexcept {
  if (memory == nullptr && kv_len > 0)
    return InvalidArgument(kForward, "memory is null with kv_len = ", kv_len);
  const std::lock_guard turn(impl_->turn);
  return impl_->RunCross({.function = kForward,
                          .q_len = q_len,
                          .kv_len = kv_len,
                          .x = x,
                          .memory = memory,
                          .out = out,
                          .options = options});
}

Status MultiHeadAttention::ForwardAgain(std::int64_t q_len, const float* x, float* out,
                                        const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::ForwardAgain";
  const std::lock_guard turn(impl_->turn);
  if (impl_->is_cross() && impl_->memory_len < 0)
    return InvalidArgument(kName, "no call has given a memory");
  return impl_->RunCross({.function = kName,
                          .q_len = q_len,
                          .kv_len = impl_->memory_len,
                          .x = x,
                          .out = out,
                          .options = options});
}

Status MultiHeadAttention::Forward(KvCache& cache, std::int64_t layer, SequenceId sequence,
                                   std::int64_t q_len, const float* x, float* out,
                                   const ForwardOptions& options) noexcept {
  const std::lock_guard turn(impl_->turn);
  return impl_->RunCached({.function = kForward,
                           .q_len = q_len,
                           .x = x,
                           .out = out,
                           .options = options,
                           .cache = &cache,
                           .layer = layer,
                           .sequence = sequence});
}

Status MultiHeadAttention::Append(std::int64_t q_len, const float* x, float* out,
                                  const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::Append";
  if (!impl_->own_cache) return InvalidArgument(kName, "own_cache = false; expected true");
  if (Status status = CheckRange(kName, "q_len", q_len, 0, params().attention.max_q_len);
      !status.ok())
    return status;
  const std::lock_guard turn(impl_->turn);
  KvCache& cache = *impl_->own_cache;
  const std::int64_t before = cache.length(impl_->own_sequence);
  if (Status status = cache.Reserve(impl_->own_sequence, q_len); !status.ok()) return status;
  Status status = impl_->RunCached({.function = kName,
                                    .q_len = q_len,
                                    .x = x,
                                    .out = out,
                                    .options = options,
                                    .cache = &cache,
                                    .sequence = impl_->own_sequence});
  if (!status.ok())
    if (Status undone = cache.Truncate(impl_->own_sequence, before).status(); !undone.ok())
      return undone;
  return status;
}

Status MultiHeadAttention::Truncate(std::int64_t length) noexcept {
  if (!impl_->own_cache)
    return InvalidArgument("MultiHeadAttention::Truncate", "own_cache = false; expected true");
  const std::lock_guard turn(impl_->turn);
  return impl_->own_cache->Truncate(impl_->own_sequence, length).status();
}

std::int64_t MultiHeadAttention::length() const noexcept {
  const std::lock_guard turn(impl_->turn);
  return impl_->own_cache ? impl_->own_cache->length(impl_->own_sequence) : 0;
}

}  // namespace manyhead
