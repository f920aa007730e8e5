#include <algorithm>
#include <cmath>

#include "runtime/attention/weights.h"

/// Computes the stages of the logits of plain tensors.

namespace manyhead {
namespace {

kernels::AttentionStage KernelStageOf(LogitStage stage) noexcept {
  switch (stage) {
    case LogitStage::kScores:
      return kernels::AttentionStage::kScores;
    case LogitStage::kCapped:
      return kernels::AttentionStage::kCapped;
    case LogitStage::kBiased:
    case LogitStage::kProbs:
      break;
  }
  return kernels::AttentionStage::kBiased;
}

}  // namespace

void AttentionWeights::OfTile(const AttentionRequest& request, std::int64_t head,
                              std::int64_t index, const AttentionThreadScratch& scratch,
                              LogitStage stage, float* weights) const noexcept {
  const AttentionTensors& tensors = *requests_.tensors();
  const kernels::KvHeadView keys;
  const AttentionTileRows rows(setup_, requests_.bias(), request, head, index, keys);
  const AttentionKeySource source(setup_, requests_, request, head, rows.rows(), scratch, keys);
  rows.PackQueries(tensors.q, scratch.q);
  const kernels::AttentionTile tile = rows.KernelTile(scratch.q, scratch.probs, scratch.total);
  const kernels::AttentionStage kernel_stage = KernelStageOf(stage);
  const std::int64_t kv_len = tensors.kv_len;
  const auto row_of = [&](std::int64_t r) {
    return weights + ((request.index * setup_.params.num_heads + rows.head(r)) * request.q_len +
                      rows.query(r)) *
                         kv_len;
  };
  // Bias and mask may end with the valid tokens; later keys are hidden.
  const bool hides = kernel_stage == kernels::AttentionStage::kBiased;
  const std::int64_t end = hides ? request.kv_len : kv_len;
  for (std::int64_t s = 0; s < end; s += kernels::kAttentionBlock) {
    const KeySpan block{s, std::min(end, s + kernels::kAttentionBlock)};
    setup_.kernels->logits(tile, source.LoadKeys(block), kernel_stage);
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      std::copy_n(tile.probs + r * kernels::kAttentionBlock, block.end - block.begin,
                  row_of(r) + s);
    }
  }
  const TensorView<float>& lse = tensors.lse;
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    std::fill_n(row_of(r) + end, kv_len - end, -HUGE_VALF);
    if (stage != LogitStage::kProbs) continue;
    setup_.kernels->normalize(
        row_of(r), kv_len,
        lse.data[request.index * lse.batch_stride + rows.query(r) * lse.token_stride +
                 rows.head(r) * lse.head_stride]);
  }
}

void AttentionWeights::OfTensors(Worker& worker, LogitStage stage, float* weights) const noexcept {
  const AttentionThreadScratch scratch = scratch_.Of(worker.index());
  // Equal for all requests.
  const std::int64_t tiles = requests_.count() == 0 ? 0 : requests_[0].tiles;
  const std::int64_t kv_heads = setup_.params.num_kv_heads;
  worker.ForEach(requests_.count() * kv_heads * tiles, [&](std::int64_t i) {
    OfTile(requests_[i / tiles / kv_heads], i / tiles % kv_heads, i % tiles, scratch, stage,
           weights);
  });
}

}  // namespace manyhead
