#include "runtime/attention/key_source.h"

#include <algorithm>
#include <atomic>

#include "runtime/platform/dcheck.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::AttentionBlock;
using kernels::kAttentionTiles;
using kernels::kKvGroup;
using kernels::kKvTile;
using kernels::KvSpan;

/// Returns the bytes of an element of a plain tensor.
std::int64_t ElementBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

}  // namespace

AttentionKeySource::AttentionKeySource(const AttentionSetup& setup,
                                       const AttentionStepRequests& requests,
                                       const AttentionRequest& request, std::int64_t head,
                                       std::int64_t rows, const AttentionThreadScratch& scratch,
                                       const kernels::KvHeadView& view) noexcept
    : setup_(setup),
      tensors_(requests.tensors()),
      scratch_(scratch),
      widens_(rows > kernels::kRowsThatWiden),
      view_(view) {
  if (tensors_ == nullptr) {
    MANYHEAD_DCHECK(view_.length == request.kv_len && view_.layout->v_row == setup.v_row &&
                    view_.layout->head_dim == setup.params.head_dim);
    return;
  }
  const AttentionTensors& tensors = *tensors_;
  const auto begin = [&](const TensorView<const void>& tensor, KvType type) {
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (data == nullptr) return data;  // there are no keys
    const std::int64_t offset = request.index * tensor.batch_stride + head * tensor.head_stride;
    return data + offset * ElementBytes(type);
  };
  k_ = begin(tensors.k, tensors.k_type);
  v_ = begin(tensors.v, tensors.v_type);
}

const KvSpan* AttentionKeySource::GapAfter(std::int64_t position) const noexcept {
  return std::upper_bound(view_.gaps, view_.gaps + view_.num_gaps, position,
                          [](std::int64_t s, const KvSpan& gap) { return s < gap.end; });
}

// A block is never divided, whatever is missing in it: its rows' maximum is updated once, so that
// evicting keys which no query sees changes no bit.
KeySpan AttentionKeySource::StoredFrom(const AttentionTileRows& rows,
                                       std::int64_t from) const noexcept {
  const KvSpan* const end = view_.gaps + view_.num_gaps;
  for (;;) {
    KeySpan span = rows.BlockFrom(from);
    if (span.begin == span.end) return span;
    const KvSpan* gap = GapAfter(span.begin);
    if (gap != end && gap->begin <= span.begin) {
      from = gap->end;
      continue;
    }
    gap = GapAfter(span.end - 1);
    if (gap != end && gap->begin < span.end) span.end = gap->begin;
    return span;
  }
}

std::uint64_t AttentionKeySource::MissingIn(const AttentionBlock& block) const noexcept {
  std::uint64_t missing = 0;
  const KvSpan* const end = view_.gaps + view_.num_gaps;
  for (const KvSpan* gap = GapAfter(block.begin); gap != end && gap->begin < block.end; ++gap) {
    for (std::int64_t s = gap->begin; s < std::min(gap->end, block.end); ++s)
      missing |= std::uint64_t{1} << (s - block.first);
  }
  return missing;
}

void AttentionKeySource::AddScores(KeySpan span, const float* probs,
                                   std::int64_t rows) const noexcept {
  const std::int64_t first = span.begin / kKvTile * kKvTile;
  for (std::int64_t position = first; position < span.end; position += kKvTile) {
    std::int64_t sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = probs + r * kernels::kAttentionBlock + (position - first);
      for (std::int64_t i = 0; i < kKvTile; ++i) {
        const float prob = row[i] < 2 ? row[i] : 0;  // NaN counts as 0
        sum += static_cast<std::int32_t>(prob * kernels::kKvScoreUnit);
      }
    }
    std::atomic_ref<std::int64_t> score(view_.scores[position / view_.layout->page_size]);
    score.fetch_add(sum, std::memory_order_relaxed);
  }
}

AttentionBlock AttentionKeySource::MakeBlock(KeySpan span) noexcept {
  AttentionBlock block;
  block.first = span.begin / kKvTile * kKvTile;
  block.begin = span.begin;
  block.end = span.end;
  block.tiles = CeilDiv(span.end - block.first, kKvTile);
  return block;
}

AttentionBlock AttentionKeySource::Load(KeySpan span, KeySpan next) const noexcept {
  AttentionBlock block = MakeBlock(span);
  block.head_dim_v = setup_.params.head_dim_v;
  if (view_.layout != nullptr) {
    LoadPages(block);
    if (widens_) WidenPages(block);
  } else {
    PackKeys(block);
    PackValues(block);
  }
  std::copy_n(block.k, kAttentionTiles, block.next_k);
  std::copy_n(block.v, kAttentionTiles, block.next_v);
  if (view_.layout != nullptr && !widens_) {
    const std::int64_t first = next.begin / kKvTile * kKvTile;
    for (std::int64_t t = 0; first + t * kKvTile < next.end && t < kAttentionTiles; ++t) {
      if (!HasTile(first + t * kKvTile)) continue;
      block.next_k[t] = KeyTile(first + t * kKvTile);
      block.next_v[t] = ValueTile(first + t * kKvTile);
    }
  }
  return block;
}

AttentionBlock AttentionKeySource::LoadKeys(KeySpan span) const noexcept {
  AttentionBlock block = MakeBlock(span);
  if (view_.layout != nullptr) {
    LoadPages(block);
    if (widens_) WidenKeys(block);
  } else {
    PackKeys(block);
  }
  std::copy_n(block.k, kAttentionTiles, block.next_k);
  return block;
}

const std::byte* AttentionKeySource::KeyTile(std::int64_t position) const noexcept {
  const kernels::KvPageLayout& layout = *view_.layout;
  return view_.pages[position / layout.page_size] +
         position % layout.page_size / kKvTile * layout.k_tile_bytes;
}

const std::byte* AttentionKeySource::ValueTile(std::int64_t position) const noexcept {
  const kernels::KvPageLayout& layout = *view_.layout;
  return view_.pages[position / layout.page_size] + layout.v_offset_bytes +
         position % layout.page_size / kKvTile * layout.v_tile_bytes;
}

void AttentionKeySource::LoadPages(AttentionBlock& block) const noexcept {
  const kernels::KvPageLayout& layout = *view_.layout;
  block.k_type = layout.k_type;
  block.v_type = layout.v_type;
  block.k_scaled = layout.k_type == KvType::kInt8;
  block.v_scaled = layout.v_type == KvType::kInt8;
  block.v_stride = layout.v_type == KvType::kInt4 ? CeilDiv(layout.v_row, kKvGroup) * (kKvGroup / 2)
                                                  : layout.v_row;
  if (view_.num_gaps > 0) block.missing = MissingIn(block);
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    // The first tile, which holds block.begin, replaces tiles whose keys are all missing.
    const std::int64_t tile = block.first + (HasTile(block.first + t * kKvTile) ? t : 0) * kKvTile;
    const std::byte *k = KeyTile(tile), *v = ValueTile(tile);
    block.k[t] = k;
    block.v[t] = v;
    block.k_scales[t] = k + layout.k_scale_bytes;
    block.v_scales[t] = v + layout.v_scale_bytes;
  }
}

void AttentionKeySource::WidenKeys(AttentionBlock& block) const noexcept {
  const std::int64_t d = setup_.params.head_dim;
  for (std::int64_t t = 0; t < block.tiles && block.k_type != KvType::kF32; ++t) {
    float* to = scratch_.k + t * kKvTile * d;
    setup_.kernels->widen_keys(block.k_type, block.k[t], block.k_scales[t], d, to);
    block.k[t] = to;
  }
  block.k_type = KvType::kF32;
}

void AttentionKeySource::WidenPages(AttentionBlock& block) const noexcept {
  WidenKeys(block);
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    setup_.kernels->widen_values(block.v_type, block.v[t], block.v_scales[t], setup_.v_row,
                                 t * kKvTile, scratch_.v);
  }
  block.v_type = KvType::kF32;
  block.v_panels = scratch_.v;
}

void AttentionKeySource::PackKeys(AttentionBlock& block) const noexcept {
  const AttentionTensors& tensors = *tensors_;
  const std::int64_t d = setup_.params.head_dim, stride = tensors.k.token_stride;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::int64_t position = block.first + t * kKvTile;
    float* to = scratch_.k + t * kKvTile * d;
    setup_.kernels->pack_keys(tensors.k_type, k_ + position * stride * ElementBytes(tensors.k_type),
                              stride, std::min(kKvTile, block.end - position), d, to);
    block.k[t] = to;
  }
}

void AttentionKeySource::PackValues(AttentionBlock& block) const noexcept {
  const AttentionTensors& tensors = *tensors_;
  const std::int64_t dv = setup_.params.head_dim_v, v_row = setup_.v_row;
  const std::int64_t stride = tensors.v.token_stride, bytes = ElementBytes(tensors.v_type);
  // A row that does not consist of whole vectors cannot be read in place: a vector would reach
  // beyond the last row.
  const bool in_place = dv == v_row && !widens_;
  block.v_type = in_place ? tensors.v_type : KvType::kF32;
  block.v_stride = stride;
  if (!in_place) block.v_panels = scratch_.v;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::int64_t position = block.first + t * kKvTile;
    const std::byte* from = v_ + position * stride * bytes;
    block.v[t] = from;
    if (in_place) continue;
    setup_.kernels->pack_values(tensors.v_type, from, stride,
                                std::min(kKvTile, block.end - position), dv, v_row, t * kKvTile,
                                scratch_.v);
  }
}

}  // namespace manyhead
