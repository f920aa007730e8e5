#include "runtime/layer/attention_block.h"

#include "runtime/cache/kv_cache_impl.h"

namespace manyhead {

void HeadRotation::Run(const float* cosine, const float* sine, std::int64_t count,
                       std::int64_t head_dim, float* heads) const noexcept {
  const std::int64_t rows = whole ? 1 : count, width = whole ? count * head_dim : head_dim;
  if (norm.kind != NormKind::kNone)
    for (std::int64_t row = 0; row < rows; ++row)
      norm.Run(*kernels, heads + row * width, width, heads + row * width);
  if (rope != nullptr) rope->Rotate(cosine, sine, count, head_dim, heads);
}

void AttentionBlock::ProjectInputs(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                                   const float* x, std::int64_t x_stride) const noexcept {
  RunLinear(worker, linear, x, x_stride, rows, inputs);
}

void AttentionBlock::Rotate(Worker& worker, std::int64_t rows) const noexcept {
  const auto turns = [](const HeadRotation& rotation) {
    return rotation.rope != nullptr || rotation.norm.kind != NormKind::kNone;
  };
  if (!turns(query_rotation) && !turns(key_rotation)) return;
  const std::int64_t H = plan->params().num_heads, K = plan->params().num_kv_heads;
  const std::int64_t D = plan->params().head_dim;
  const Rope* rope = query_rotation.rope;
  const std::int64_t half = rope == nullptr ? 0 : rope->config().rotary_dim / 2;
  worker.ForEach(rows, [&](std::int64_t row) {
    const float* cosines = cosine + row * half;
    const float* sines = sine + row * half;
    query_rotation.Run(cosines, sines, H, D, query + row * H * D);
    key_rotation.Run(cosines, sines, K, D, key + row * K * D);
  });
}

void AttentionBlock::Write(Worker& worker, KvCache& cache, std::int64_t layer,
                           std::span<const KvRows> tokens) const noexcept {
  const AttentionParams& params = plan->params();
  cache.impl().WriteOn(worker, layer, tokens, key, value, params.num_kv_heads * params.head_dim,
                       params.num_kv_heads * params.head_dim_v);
}

void AttentionBlock::Attend(Worker& worker, std::int64_t layer) const noexcept {
  plan->RunOn(worker, layer, query, attended, lse);
}

void AttentionBlock::ProjectOutput(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                                   float* y) const noexcept {
  const LinearOutput outputs[] = {{output, y, output->rows, output_bias}};
  RunLinear(worker, linear, attended, output->cols, rows, outputs);
}

}  // namespace manyhead
