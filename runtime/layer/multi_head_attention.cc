#include "manyhead/multi_head_attention.h"

#include <sstream>
#include <utility>

#include "runtime/layer/multi_head_attention_impl.h"

namespace manyhead {
namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;  // keeps sizes far from overflow
constexpr const char* kCreate = "MultiHeadAttention::Create";

template <class... Parts>
Status Invalid(const char* function, const Parts&... parts) {
  std::ostringstream message;
  message << function << ": ";
  (message << ... << parts);
  return {StatusCode::kInvalidArgument, message.str()};
}

Status CheckRange(const char* function, const char* name, std::int64_t value, std::int64_t low,
                  std::int64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(function, name, " = ", value, "; expected ", low, "..", high);
}

/// Fills in the layer's own defaults.
Status ResolveSizes(MultiHeadAttentionParams& params) {
  if (Status status = CheckRange(kCreate, "d_model", params.d_model, 1, kMaxDim); !status.ok())
    return status;
  if (Status status = CheckRange(kCreate, "memory_dim", params.memory_dim, 0, kMaxDim);
      !status.ok())
    return status;
  AttentionParams& attention = params.attention;
  if (attention.num_heads < 1)
    return Invalid(kCreate, "num_heads = ", attention.num_heads, "; expected at least 1");
  if (attention.head_dim == 0) {
    if (params.d_model % attention.num_heads != 0)
      return Invalid(kCreate, "d_model = ", params.d_model,
                     " is not a multiple of num_heads = ", attention.num_heads);
    attention.head_dim = params.d_model / attention.num_heads;
  }
  if (attention.num_kv_heads == 0) attention.num_kv_heads = attention.num_heads;
  if (attention.max_kv_len == 0) attention.max_kv_len = attention.max_q_len;
  return {};
}

/// A memory has no order, and is not appended to.
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
      return Invalid(kCreate, what, " with memory_dim = ", params.memory_dim,
                     "; expected none in cross attention");
  return {};
}

Status CheckProjection(const char* name, const ProjectionWeights& weights, std::int64_t rows,
                       std::int64_t cols) {
  const auto block = FindWeightBlock(static_cast<std::uint32_t>(weights.type));
  if (!block)
    return Invalid(kCreate, name, " has type = ", static_cast<int>(weights.type),
                   "; expected a WeightType");
  if (cols % block->elements != 0)
    return Invalid(kCreate, name, " [", rows, ", ", cols, "]: ", cols,
                   " is not a multiple of the block of ", WeightTypeName(weights.type), " = ",
                   block->elements);
  const std::int64_t bytes = rows * (cols / block->elements * block->bytes);
  if (static_cast<std::int64_t>(weights.data.size()) != bytes)
    return Invalid(kCreate, name, " has ", weights.data.size(), " bytes; expected ", bytes,
                   " for [", rows, ", ", cols, "] of ", WeightTypeName(weights.type));
  if (!weights.bias.empty() && static_cast<std::int64_t>(weights.bias.size()) != rows)
    return Invalid(kCreate, name, " has ", weights.bias.size(), " biases; expected ", rows,
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
    // A plan knows best what is wrong with its parameters, and what their defaults are.
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

namespace {

/// What every call is checked for.
Status CheckCall(const char* function, const AttentionParams& attention, std::int64_t q_len,
                 std::int64_t kv_len, const float* x, const float* out,
                 const ForwardOptions& options) {
  if (Status status = CheckRange(function, "q_len", q_len, 0, attention.max_q_len); !status.ok())
    return status;
  if (Status status = CheckRange(function, "kv_len", kv_len, 0, attention.max_kv_len); !status.ok())
    return status;
  if (q_len == 0) return {};
  if (x == nullptr || out == nullptr)
    return Invalid(function, x == nullptr ? "x" : "out", " is null with q_len = ", q_len);
  if (options.bias.bias.data != nullptr && options.bias.bias.kv_len < kv_len)
    return Invalid(function, "bias has kv_len = ", options.bias.bias.kv_len,
                   "; expected at least kv_len = ", kv_len);
  if (options.bias.mask.data != nullptr && options.bias.mask.kv_len < kv_len)
    return Invalid(function, "mask has kv_len = ", options.bias.mask.kv_len,
                   "; expected at least kv_len = ", kv_len);
  return {};
}

Status CheckKind(const char* function, std::int64_t memory_dim, bool cross) {
  if ((memory_dim > 0) == cross) return {};
  return Invalid(function, "memory_dim = ", memory_dim, "; this call is of ",
                 cross ? "cross" : "self", " attention");
}

/// Whether `sequence` and `layer` of `cache` can serve a layer of `shape`.
Status CheckCache(const char* function, const KvCache& cache, std::int64_t layer,
                  SequenceId sequence, const KvLayerShape& shape, std::int64_t q_len) {
  const auto& layers = cache.params().layers;
  if (Status status =
          CheckRange(function, "layer", layer, 0, static_cast<std::int64_t>(layers.size()) - 1);
      !status.ok())
    return status;
  const KvLayerShape& stored = layers[static_cast<std::size_t>(layer)];
  const struct {
    const char* name;
    std::int64_t wanted, stored;
  } sizes[] = {
      {"num_kv_heads", shape.num_kv_heads, stored.num_kv_heads},
      {"head_dim", shape.head_dim, stored.head_dim},
      {"head_dim_v", shape.head_dim_v,
       stored.head_dim_v == 0 ? stored.head_dim : stored.head_dim_v},
  };
  for (const auto& [name, wanted, held] : sizes)
    if (wanted != held)
      return Invalid(function, name, " = ", wanted, " differs from ", name, " = ", held,
                     " of layer ", layer, " in the cache");
  const std::int64_t length = cache.length(sequence);
  if (length < 0)
    return Invalid(function, "sequence = ", static_cast<std::int64_t>(sequence),
                   " is not in the cache");
  if (q_len > length)
    return Invalid(function, "q_len = ", q_len, " exceeds the ", length,
                   " tokens that the cache has reserved");
  return {};
}

}  // namespace

Status MultiHeadAttention::Forward(std::int64_t q_len, const float* x, float* out,
                                   const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::Forward";
  if (Status status = CheckKind(kName, params().memory_dim, false); !status.ok()) return status;
  if (Status status = CheckCall(kName, params().attention, q_len, q_len, x, out, options);
      !status.ok() || q_len == 0)
    return status;
  Impl::Call call;
  call.q_len = call.kv_len = q_len;
  call.x = x;
  call.out = out;
  call.options = options;
  return impl_->Run(call);
}

Status MultiHeadAttention::Forward(std::int64_t q_len, const float* x, std::int64_t kv_len,
                                   const float* memory, float* out,
                                   const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::Forward";
  if (Status status = CheckKind(kName, params().memory_dim, true); !status.ok()) return status;
  if (Status status = CheckCall(kName, params().attention, q_len, kv_len, x, out, options);
      !status.ok())
    return status;
  if (memory == nullptr && kv_len > 0)
    return Invalid(kName, "memory is null with kv_len = ", kv_len);
  Impl::Call call;
  call.q_len = q_len;
  call.kv_len = kv_len;
  call.x = x;
  call.memory = memory;
  call.out = out;
  call.options = options;
  return impl_->Run(call);
}

Status MultiHeadAttention::ForwardAgain(std::int64_t q_len, const float* x, float* out,
                                        const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::ForwardAgain";
  if (Status status = CheckKind(kName, params().memory_dim, true); !status.ok()) return status;
  if (impl_->memory_len < 0) return Invalid(kName, "no call has given a memory");
  if (Status status =
          CheckCall(kName, params().attention, q_len, impl_->memory_len, x, out, options);
      !status.ok())
    return status;
  Impl::Call call;
  call.q_len = q_len;
  call.kv_len = impl_->memory_len;
  call.x = x;
  call.out = out;
  call.options = options;
  return impl_->Run(call);
}

Status MultiHeadAttention::Forward(KvCache& cache, std::int64_t layer, SequenceId sequence,
                                   std::int64_t q_len, const float* x, float* out,
                                   const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::Forward";
  if (Status status = CheckKind(kName, params().memory_dim, false); !status.ok()) return status;
  if (Status status = CheckCache(kName, cache, layer, sequence, cache_shape(), q_len); !status.ok())
    return status;
  const std::int64_t kv_len = cache.length(sequence);
  if (Status status = CheckCall(kName, params().attention, q_len, kv_len, x, out, options);
      !status.ok() || q_len == 0)
    return status;
  Impl::Call call;
  call.q_len = q_len;
  call.kv_len = kv_len;
  call.position = kv_len - q_len;
  call.x = x;
  call.out = out;
  call.options = options;
  call.cache = &cache;
  call.layer = layer;
  call.sequence = sequence;
  return impl_->Run(call);
}

Status MultiHeadAttention::Append(std::int64_t q_len, const float* x, float* out,
                                  const ForwardOptions& options) noexcept {
  constexpr const char* kName = "MultiHeadAttention::Append";
  if (!impl_->own_cache) return Invalid(kName, "the layer has no cache; expected own_cache = true");
  if (Status status = CheckRange(kName, "q_len", q_len, 0, params().attention.max_q_len);
      !status.ok())
    return status;
  KvCache& cache = *impl_->own_cache;
  const std::int64_t before = length();
  if (Status status = cache.Reserve(impl_->own_sequence, q_len); !status.ok()) return status;
  Status status = Forward(cache, 0, impl_->own_sequence, q_len, x, out, options);
  if (!status.ok()) {
    const Status undone = cache.Truncate(impl_->own_sequence, before);
    return undone.ok() ? status : undone;
  }
  return status;
}

Status MultiHeadAttention::Truncate(std::int64_t length) noexcept {
  if (!impl_->own_cache)
    return Invalid("MultiHeadAttention::Truncate",
                   "the layer has no cache; expected own_cache = true");
  return impl_->own_cache->Truncate(impl_->own_sequence, length);
}

std::int64_t MultiHeadAttention::length() const noexcept {
  return impl_->own_cache ? impl_->own_cache->length(impl_->own_sequence) : 0;
}

}  // namespace manyhead
