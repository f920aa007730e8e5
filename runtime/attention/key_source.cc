#include "runtime/attention/key_source.h"

#include <algorithm>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using kernels::AttentionBlock;
using kernels::kAttentionTiles;
using kernels::kKvGroup;
using kernels::kKvTile;

/// Bytes of an element of a plain tensor.
std::int64_t ElementBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

}  // namespace

AttentionKeySource::AttentionKeySource(const AttentionPlan::Impl& plan,
                                       const AttentionPlan::Impl::Request& request,
                                       std::int64_t layer, std::int64_t head, std::int64_t rows,
                                       const AttentionPlan::Impl::Scratch& scratch) noexcept
    : plan_(plan), scratch_(scratch), widens_(rows > kernels::kRowsThatWiden) {
  if (plan.cache_ != nullptr) {
    view_ = plan.cache_->impl().HeadView(request.sequence, layer, head);
    MANYHEAD_DCHECK(view_.length == request.kv_len && view_.layout->v_row == plan.v_row_ &&
                    view_.layout->head_dim == plan.params_.head_dim);
    return;
  }
  const AttentionTensors& tensors = *plan.tensors_;
  const auto begin = [&](const TensorView<const void>& view, KvType type) {
    const std::int64_t offset = request.index * view.batch_stride + head * view.head_stride;
    return static_cast<const std::byte*>(view.data) + offset * ElementBytes(type);
  };
  k_ = begin(tensors.k, tensors.k_type);
  v_ = begin(tensors.v, tensors.v_type);
}

AttentionBlock AttentionKeySource::MakeBlock(KeySpan span) noexcept {
  AttentionBlock block;
  block.first = span.begin / kKvTile * kKvTile;
  block.begin = span.begin;
  block.end = span.end;
  block.tiles = (span.end - block.first + kKvTile - 1) / kKvTile;
  return block;
}

AttentionBlock AttentionKeySource::Load(KeySpan span, KeySpan next) const noexcept {
  AttentionBlock block = MakeBlock(span);
  block.head_dim_v = plan_.params_.head_dim_v;
  if (view_.layout != nullptr) {
    LoadPages(block);
  } else {
    PackKeys(block);
    PackValues(block);
  }
  std::copy_n(block.k, kAttentionTiles, block.next_k);
  std::copy_n(block.v, kAttentionTiles, block.next_v);
  if (view_.layout != nullptr && !widens_) {
    const std::int64_t first = next.begin / kKvTile * kKvTile;
    for (std::int64_t t = 0; first + t * kKvTile < next.end && t < kAttentionTiles; ++t) {
      block.next_k[t] = KeyTile(first + t * kKvTile);
      block.next_v[t] = ValueTile(first + t * kKvTile);
    }
  }
  return block;
}

AttentionBlock AttentionKeySource::LoadKeys(KeySpan span) const noexcept {
  AttentionBlock block = MakeBlock(span);
  PackKeys(block);
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
  block.v_stride = layout.v_type == KvType::kInt4
                       ? (layout.v_row + kKvGroup - 1) / kKvGroup * (kKvGroup / 2)
                       : layout.v_row;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::byte *k = KeyTile(block.first + t * kKvTile),
                    *v = ValueTile(block.first + t * kKvTile);
    block.k[t] = k;
    block.v[t] = v;
    block.k_scales[t] = k + layout.k_scale_bytes;
    block.v_scales[t] = v + layout.v_scale_bytes;
  }
  if (widens_) WidenPages(block);
}

void AttentionKeySource::WidenPages(AttentionBlock& block) const noexcept {
  const std::int64_t d = plan_.params_.head_dim;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    plan_.kernels_->widen_values(block.v_type, block.v[t], block.v_scales[t], plan_.v_row_,
                                 t * kKvTile, scratch_.v);
    if (block.k_type == KvType::kF32) continue;
    float* to = scratch_.k + t * kKvTile * d;
    plan_.kernels_->widen_keys(block.k_type, block.k[t], block.k_scales[t], d, to);
    block.k[t] = to;
  }
  block.k_type = block.v_type = KvType::kF32;
  block.v_panels = scratch_.v;
}

void AttentionKeySource::PackKeys(AttentionBlock& block) const noexcept {
  const AttentionTensors& tensors = *plan_.tensors_;
  const std::int64_t d = plan_.params_.head_dim, stride = tensors.k.token_stride;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::int64_t position = block.first + t * kKvTile;
    float* to = scratch_.k + t * kKvTile * d;
    plan_.kernels_->pack_keys(tensors.k_type, k_ + position * stride * ElementBytes(tensors.k_type),
                              stride, std::min(kKvTile, block.end - position), d, to);
    block.k[t] = to;
  }
}

void AttentionKeySource::PackValues(AttentionBlock& block) const noexcept {
  const AttentionTensors& tensors = *plan_.tensors_;
  const std::int64_t dv = plan_.params_.head_dim_v, v_row = plan_.v_row_;
  const std::int64_t stride = tensors.v.token_stride, bytes = ElementBytes(tensors.v_type);
  // A row of another length than whole vectors cannot be read in place: a vector would reach beyond
  // the last one.
  const bool in_place = dv == v_row && !widens_;
  block.v_type = in_place ? tensors.v_type : KvType::kF32;
  block.v_stride = stride;
  if (!in_place) block.v_panels = scratch_.v;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::int64_t position = block.first + t * kKvTile;
    const std::byte* from = v_ + position * stride * bytes;
    block.v[t] = from;
    if (in_place) continue;
    plan_.kernels_->pack_values(tensors.v_type, from, stride,
                                std::min(kKvTile, block.end - position), dv, v_row, t * kKvTile,
                                scratch_.v);
  }
}

}  // namespace manyhead
