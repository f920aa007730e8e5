#include "runtime/layer/multi_head_attention_impl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cache/sequence_cache.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

/// Returns the parameters of a plan for one head alone.
AttentionParams ParamsOfHead(AttentionParams params, std::size_t head) {
  params.num_heads = params.num_kv_heads = 1;
  if (!params.alibi_slopes.empty()) params.alibi_slopes = {params.alibi_slopes[head]};
  if (!params.sink_logits.empty()) params.sink_logits = {params.sink_logits[head]};
  return params;
}

}  // namespace

MultiHeadAttention::Impl::Projection::Projection(const ProjectionWeights& weights,
                                                 std::int64_t rows, std::int64_t cols, bool copied)
    : weight{weights.type, rows, cols, weights.data.data()},
      bias(weights.bias.begin(), weights.bias.end()) {
  if (!copied) return;
  copy = AlignedBuffer<std::byte>(static_cast<std::int64_t>(weights.data.size()));
  std::memcpy(copy.data(), weights.data.data(), weights.data.size());
  weight.data = copy.data();
}

MultiHeadAttention::Impl::Impl(const MultiHeadAttentionParams& params,
                               const MultiHeadAttentionWeights& weights)
    : params_(params),
      kernels_(KernelsFor(*params.attention.isa).vector),
      query_weights_(weights.query, params.attention.num_heads * params.attention.head_dim,
                     params.d_model, params.copy_weights),
      key_weights_(weights.key, params.attention.num_kv_heads * params.attention.head_dim,
                   params.memory_dim > 0 ? params.memory_dim : params.d_model, params.copy_weights),
      value_weights_(weights.value, params.attention.num_kv_heads * params.attention.head_dim_v,
                     params.memory_dim > 0 ? params.memory_dim : params.d_model,
                     params.copy_weights),
      output_weights_(weights.output, params.d_model,
                      params.attention.num_heads * params.attention.head_dim_v,
                      params.copy_weights) {}

Result<std::unique_ptr<MultiHeadAttention::Impl>> MultiHeadAttention::Impl::Create(
    const MultiHeadAttentionParams& params, const MultiHeadAttentionWeights& weights) {
  std::unique_ptr<Impl> impl(new Impl(params, weights));
  for (Status (Impl::*create)() :
       {&Impl::CreateRope, &Impl::CreatePlans, &Impl::CreateLinear, &Impl::CreateOwnCache})
    if (Status status = (*impl.*create)(); !status.ok()) return status;
  impl->AllocateBuffers();
  return impl;
}

Status MultiHeadAttention::Impl::CreateRope() {
  if (!params_.rope) return {};
  Result<Rope> rope =
      Rope::Create(*params_.rope, params_.attention.head_dim, params_.attention.isa);
  if (!rope.ok()) return rope.status();
  params_.rope = rope->config();
  rope_ = *std::move(rope);
  return {};
}

Status MultiHeadAttention::Impl::CreatePlans() {
  const AttentionParams& attention = params_.attention;
  const bool differ = !attention.alibi_slopes.empty() || !attention.sink_logits.empty();
  const std::size_t plans =
      params_.sequential && differ ? static_cast<std::size_t>(attention.num_heads) : 1;
  for (std::size_t h = 0; h < plans; ++h) {
    Result<AttentionPlan> plan =
        AttentionPlan::Create(params_.sequential ? ParamsOfHead(attention, h) : attention);
    if (!plan.ok()) return plan.status();
    plans_.push_back(*std::move(plan));
  }
  return {};
}

Status MultiHeadAttention::Impl::CreateLinear() {
  const AttentionParams& attention = params_.attention;
  Result<LinearWorkspace> linear = LinearWorkspace::Create(
      {.max_cols = std::max({params_.d_model, params_.memory_dim, output_weights_.weight.cols}),
       .max_rows =
           is_cross() ? std::max(attention.max_q_len, attention.max_kv_len) : attention.max_q_len,
       .threads = attention.threads,
       .isa = *attention.isa,
       .math = params_.math});
  if (!linear.ok()) return linear.status();
  linear_.emplace(*std::move(linear));
  return {};
}

Status MultiHeadAttention::Impl::CreateOwnCache() {
  if (!params_.own_cache) return {};
  const AttentionParams& attention = params_.attention;
  KvCacheParams params;
  params.layers = {{attention.num_kv_heads, attention.head_dim, attention.head_dim_v}};
  params.k_type = params_.k_type;
  params.v_type = params_.v_type;
  params.max_tokens = attention.max_kv_len;
  params.isa = attention.isa;
  Result<SequenceCache> made = CreateSequenceCache(std::move(params), 0);
  if (!made.ok()) return made.status();
  own_cache.emplace(std::move(made->cache));
  own_sequence = made->sequence;
  // The table of pages is allocated at its largest size and never grows; unused pages take no
  // memory.
  if (Status status = own_cache->Reserve(own_sequence, attention.max_kv_len); !status.ok())
    return status;
  return own_cache->Truncate(own_sequence, 0).status();
}

void MultiHeadAttention::Impl::AllocateBuffers() {
  const AttentionParams& attention = params_.attention;
  const std::int64_t T = attention.max_q_len, S = attention.max_kv_len;
  const std::int64_t D = attention.head_dim, Dv = attention.head_dim_v;
  const std::int64_t H = params_.sequential ? 1 : attention.num_heads;
  const std::int64_t kv_rows = is_cross() ? S : T;
  query_ = AlignedBuffer<float>(T * H * D);
  key_ = AlignedBuffer<float>(kv_rows * attention.num_kv_heads * D);
  value_ = AlignedBuffer<float>(kv_rows * attention.num_kv_heads * Dv);
  attended_ = AlignedBuffer<float>(T * H * Dv);
  if (params_.sequential) {
    head_key_ = AlignedBuffer<float>(S * D);
    head_value_ = AlignedBuffer<float>(S * Dv);
    term_ = AlignedBuffer<float>(T * params_.d_model);
  }
  const std::int64_t block = WeightBlockOf(output_weights_.weight.type).elements;
  if (Dv % block != 0) {
    std::int64_t most = 0;
    for (std::int64_t h = 0, first = 0; h < attention.num_heads; ++h)
      most = std::max(most, PaddedColumns(h, &first));
    padded_ = AlignedBuffer<float>(T * most);
  }
  if (rope_) {
    cosine_ = AlignedBuffer<float>(T * rope_->config().rotary_dim / 2);
    sine_ = AlignedBuffer<float>(T * rope_->config().rotary_dim / 2);
  }
}

std::int64_t MultiHeadAttention::Impl::scratch_bytes() const noexcept {
  std::int64_t bytes = linear_->size_bytes();
  for (const AttentionPlan& plan : plans_) bytes += plan.scratch_bytes();
  for (const AlignedBuffer<float>* buffer : {&query_, &key_, &value_, &attended_, &head_key_,
                                             &head_value_, &term_, &padded_, &cosine_, &sine_})
    bytes += buffer->size_bytes();
  return bytes;
}

}  // namespace manyhead
