#include <algorithm>
#include <cmath>

#include "runtime/attention/weights.h"

/// Computes the weights of single rows over a cache.

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionRows;
using kernels::kKvTile;

/// The sums over the blocks of one row.
struct RowSum {
  double weights = 0;
  double entropy = 0;  ///< sum w (lse - x): the entropy, apart from the rounding of lse
};

constexpr float kLowest = -3.40282347e38F;

/// Adds `n` weights and their logits, a multiple of kKvTile.
void AddBlock(const float* logits, const float* weights, std::int64_t n, float lse, RowSum& sum) {
  float weight[kKvTile] = {}, entropy[kKvTile] = {};  // lanes that compilers can vectorise
  for (std::int64_t i = 0; i < n; i += kKvTile) {
    for (std::int64_t j = 0; j < kKvTile; ++j) {
      const float x = logits[i + j] > kLowest ? logits[i + j] : lse;  // a hidden key has weight 0
      weight[j] += weights[i + j];
      entropy[j] += weights[i + j] * (lse - x);
    }
  }
  for (std::int64_t j = 0; j < kKvTile; ++j) {
    sum.weights += double{weight[j]};
    sum.entropy += double{entropy[j]};
  }
}

/// Returns the number of keys of `seen` that are in no gap of `keys`.
std::int64_t CountStored(const kernels::KvHeadView& keys, const SeenKeys& seen) {
  std::int64_t count = 0;
  for (const KeySpan span : {KeySpan{0, seen.sinks}, KeySpan{seen.begin, seen.end}}) {
    count += std::max<std::int64_t>(0, span.end - span.begin);
    for (std::int64_t i = 0; i < keys.num_gaps; ++i) {
      const std::int64_t begin = std::max(span.begin, keys.gaps[i].begin);
      count -= std::max<std::int64_t>(0, std::min(span.end, keys.gaps[i].end) - begin);
    }
  }
  return count;
}

}  // namespace

std::int64_t AttentionWeights::GroupTileRows() const noexcept {
  std::int64_t rows = std::min(setup_.group(), kAttentionRows);
  while (setup_.group() % rows != 0) --rows;
  return rows;
}

float AttentionWeights::SinkShare(std::int64_t head, float lse) const noexcept {
  if (setup_.params.sink_logits.empty()) return 0;
  const float sink = setup_.params.sink_logits[static_cast<std::size_t>(head)];
  return sink == -HUGE_VALF ? 0 : std::exp(sink - lse);
}

SeenKeys AttentionWeights::OfRows(const AttentionTileRows& rows, const AttentionKeySource& source,
                                  const AttentionThreadScratch& scratch, const float* lse,
                                  const AttentionRows& to) const noexcept {
  const SeenKeys seen = rows.seen();
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    float* weights = to.weights + r * to.stride;
    if (to.length > 0) {
      std::fill_n(weights, to.length, 0.0F);
      continue;
    }
    std::fill_n(weights, seen.sinks, 0.0F);
    if (seen.begin < seen.end) std::fill(weights + seen.begin, weights + seen.end, 0.0F);
  }
  RowSum sums[kAttentionRows];
  const kernels::AttentionTile tile = rows.KernelTile(scratch.q, scratch.probs, scratch.total);
  for (KeySpan span = source.From(rows, 0); span.begin < rows.end();
       span = source.From(rows, span.end)) {
    const kernels::AttentionBlock block = source.LoadKeys(span);
    setup_.kernels->logits(tile, block, kernels::AttentionStage::kBiased);
    const std::int64_t columns = block.tiles * kKvTile;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      float* x = tile.probs + r * kAttentionBlock;
      float logits[kAttentionBlock];
      std::copy_n(x, columns, logits);
      setup_.kernels->normalize(x, columns, lse[r]);
      AddBlock(logits, x, columns, lse[r], sums[r]);
      std::copy_n(x + (span.begin - block.first), span.end - span.begin,
                  to.weights + r * to.stride + span.begin);
    }
  }
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const double wanted = 1 - double{SinkShare(rows.head(r), lse[r])};
    const double factor = sums[r].weights > 0 ? wanted / sums[r].weights : 1;
    if (to.entropy != nullptr) {
      // The entropy of f w, where the factor f normalises the weights w: -sum f w ln(f w).
      to.entropy[r] = static_cast<float>(factor * sums[r].entropy - wanted * std::log(factor));
      if (sums[r].weights == 0) to.entropy[r] = 0;
    }
    if (!(std::fabs(factor - 1) > 0x1p-24)) continue;
    float* weights = to.weights + r * to.stride;
    const auto scale = [&](float& w) { w *= static_cast<float>(factor); };
    std::for_each(weights, weights + seen.sinks, scale);
    if (seen.begin < seen.end) std::for_each(weights + seen.begin, weights + seen.end, scale);
  }
  return seen;
}

SeenKeys AttentionWeights::OfQuery(int thread, std::int64_t layer, std::int64_t request_index,
                                   std::int64_t head, std::int64_t query, const float* q,
                                   const float* lse, const AttentionRows& to) const noexcept {
  AttentionRequest request = requests_[request_index];
  request.tile_rows = GroupTileRows();
  const AttentionThreadScratch scratch = scratch_.Of(thread);
  const kernels::KvHeadView keys = requests_.KeysOf(request, layer, head);
  const std::int64_t tiles = setup_.group() / request.tile_rows, width = setup_.params.num_heads;
  SeenKeys seen;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const AttentionTileRows rows(setup_, requests_.bias(), request, head, query * tiles + i, keys);
    const AttentionKeySource source(setup_, requests_, request, head, rows.rows(), scratch, keys);
    rows.PackQueries({q, 0, width * setup_.params.head_dim, setup_.params.head_dim}, scratch.q);
    const std::int64_t first = i * request.tile_rows;
    const float* row_lse = lse + (request.q_begin + query) * width + head * setup_.group() + first;
    seen = OfRows(rows, source, scratch, row_lse,
                  {to.weights + first * to.stride, to.stride, to.length,
                   to.entropy == nullptr ? nullptr : to.entropy + first});
  }
  return seen;
}

std::int64_t AttentionWeights::BytesSeen(std::int64_t layer, std::int64_t request_index,
                                         std::int64_t head) const noexcept {
  const AttentionRequest& request = requests_[request_index];
  const kernels::KvHeadView keys = requests_.KeysOf(request, layer, head);
  // The first and the last tile suffice: the keys that other tiles see lie between.
  SeenKeys seen = AttentionTileRows(setup_, requests_.bias(), request, head, 0, keys).seen();
  if (request.tiles > 1) {
    const SeenKeys last =
        AttentionTileRows(setup_, requests_.bias(), request, head, request.tiles - 1, keys).seen();
    seen = {std::max(seen.sinks, last.sinks), std::min(seen.begin, last.begin), last.end};
    seen.sinks = std::min(seen.sinks, seen.begin);
  }
  const kernels::KvPageLayout& layout = *keys.layout;
  return CountStored(keys, seen) * (layout.k_tile_bytes + layout.v_tile_bytes) / kKvTile;
}

void AttentionWeights::OfCache(Worker& worker, std::int64_t layer, const float* q, const float* lse,
                               float* weights) const noexcept {
  const AttentionRequest& request = requests_[0];
  const std::int64_t T = request.q_len, S = request.kv_len, G = setup_.group();
  worker.ForEach(T * setup_.params.num_kv_heads, [&](std::int64_t i) {
    const std::int64_t query = i / setup_.params.num_kv_heads,
                       head = i % setup_.params.num_kv_heads;
    float* rows = weights + (head * G * T + query) * S;
    OfQuery(worker.index(), layer, 0, head, query, q, lse, {rows, T * S, S, nullptr});
  });
}

}  // namespace manyhead
