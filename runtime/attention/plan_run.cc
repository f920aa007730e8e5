#include <algorithm>

#include "kernels/kv_layout.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using kernels::AttentionBlock;
using kernels::AttentionState;
using kernels::kAttentionBlock;
using kernels::kAttentionRows;
using kernels::kAttentionSplit;
using kernels::kAttentionTiles;
using kernels::kKvTile;

/// Up to so many rows, keys and values are widened in the products' registers; above, once per
/// block into f32 scratch, which costs a store and a load but serves all row blocks.
constexpr std::int64_t kRowsThatWiden = 12;

std::int64_t ElementBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

}  // namespace

class AttentionPlan::Impl::Tile {
 public:
  Tile(const Impl& plan, const Request& request, std::int64_t head, std::int64_t index) noexcept {
    const AttentionParams& params = plan.params_;
    const std::int64_t group = plan.group(), first = index * kAttentionRows;
    rows_ = std::min(kAttentionRows, request.q_len * group - first);
    begin_ = request.kv_len;
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t t = (first + r) / group;
      const std::int64_t position = request.kv_len - request.q_len + t;
      const bool bounded = params.causal || params.window > 0;
      first_key_[r] =
          params.window > 0 ? std::max<std::int64_t>(0, position - params.window + 1) : 0;
      end_key_[r] = bounded ? position + 1 : request.kv_len;
      begin_ = std::min(begin_, first_key_[r]);
      end_ = std::max(end_, end_key_[r]);
      index_[r] = (request.q_begin + t) * params.num_heads + head * group + (first + r) % group;
    }
  }

  std::int64_t rows() const noexcept { return rows_; }
  /// Positions that any row sees lie in [begin, end).
  std::int64_t begin() const noexcept { return begin_; }
  std::int64_t end() const noexcept { return end_; }
  const std::int64_t* first_key() const noexcept { return first_key_; }
  const std::int64_t* end_key() const noexcept { return end_key_; }

  /// pointers[r] = base + (index of row r among all query heads) * stride.
  template <class T>
  void Rows(T* base, std::int64_t stride, T** pointers) const noexcept {
    for (std::int64_t r = 0; r < rows_; ++r) pointers[r] = base + index_[r] * stride;
  }

  void Finish(const Impl& plan, const Tensors& tensors,
              const AttentionState& state) const noexcept {
    float* out[kAttentionRows];
    float* lse[kAttentionRows];
    Rows(tensors.out, plan.params_.head_dim_v, out);
    if (tensors.lse != nullptr) Rows(tensors.lse, 1, lse);
    plan.kernels_->finish(state, rows_, plan.params_.head_dim_v, plan.v_row_, out,
                          tensors.lse != nullptr ? lse : nullptr);
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::int64_t first_key_[kAttentionRows];
  std::int64_t end_key_[kAttentionRows];
  std::int64_t index_[kAttentionRows];
};

class AttentionPlan::Impl::KvSource {
 public:
  KvSource(const Impl& plan, const Request& request, std::int64_t layer, std::int64_t head,
           std::int64_t rows, const Scratch& scratch) noexcept
      : plan_(plan), scratch_(scratch), head_(head), rows_(rows), kv_len_(request.kv_len) {
    if (plan.cache_ == nullptr) return;
    view_ = plan.cache_->impl().HeadView(request.sequence, layer, head);
    MANYHEAD_DCHECK(view_.length == request.kv_len && view_.layout->v_row == plan.v_row_ &&
                    view_.layout->head_dim == plan.params_.head_dim);
  }

  /// The keys [begin, end), which lie in one block; more follow up to `last`.
  AttentionBlock Load(std::int64_t begin, std::int64_t end, std::int64_t last) const noexcept {
    AttentionBlock block;
    block.first = begin / kKvTile * kKvTile;
    block.begin = begin;
    block.end = end;
    block.tiles = (end - block.first + kKvTile - 1) / kKvTile;
    block.head_dim_v = plan_.params_.head_dim_v;
    if (view_.layout == nullptr) {
      LoadTensors(block);
    } else {
      LoadPages(block);
    }
    std::copy_n(block.k, kAttentionTiles, block.next_k);
    std::copy_n(block.v, kAttentionTiles, block.next_v);
    if (view_.layout != nullptr && rows_ <= kRowsThatWiden) {
      for (std::int64_t t = 0; t * kKvTile < last - end && t < kAttentionTiles; ++t) {
        Locate(end + t * kKvTile, block.next_k[t], block.next_v[t]);
      }
    }
    return block;
  }

 private:
  /// The tile of a position that is a multiple of kKvTile.
  void Locate(std::int64_t position, const void*& k, const void*& v) const noexcept {
    const kernels::KvPageLayout& layout = *view_.layout;
    const std::byte* page = view_.pages[position / layout.page_size];
    const std::int64_t token = position % layout.page_size;
    k = page + token * layout.head_dim * ElementBytes(layout.k_type);
    v = page + layout.v_offset_bytes + token * layout.v_row * ElementBytes(layout.v_type);
  }

  void LoadPages(AttentionBlock& block) const noexcept {
    const kernels::KvPageLayout& layout = *view_.layout;
    block.k_type = layout.k_type;
    block.v_type = layout.v_type;
    block.v_stride = layout.v_row;
    for (std::int64_t t = 0; t < block.tiles; ++t) {
      Locate(block.first + t * kKvTile, block.k[t], block.v[t]);
    }
    if (rows_ <= kRowsThatWiden) return;
    Widen(layout.head_dim * kKvTile, block.tiles, scratch_.k, block.k, block.k_type);
    Widen(layout.v_row * kKvTile, block.tiles, scratch_.v, block.v, block.v_type);
  }

  /// Replaces tiles of `n` numbers of another type by f32 copies.
  void Widen(std::int64_t n, std::int64_t tiles, float* to, const void** tile,
             KvType& type) const noexcept {
    if (type == KvType::kF32) return;
    for (std::int64_t t = 0; t < tiles; ++t, to += n) {
      plan_.kernels_->widen(type, tile[t], n, to);
      tile[t] = to;
    }
    type = KvType::kF32;
  }

  void LoadTensors(AttentionBlock& block) const noexcept {
    const AttentionParams& params = plan_.params_;
    const std::int64_t d = params.head_dim, dv = params.head_dim_v, v_row = plan_.v_row_;
    const std::int64_t k_stride = params.num_kv_heads * d, v_stride = params.num_kv_heads * dv;
    const bool in_place = dv == v_row;  // else a vector would reach beyond the last row
    block.v_stride = in_place ? v_stride : v_row;
    for (std::int64_t t = 0; t < block.tiles; ++t) {
      const std::int64_t position = block.first + t * kKvTile;
      const std::int64_t count = std::min(kKvTile, kv_len_ - position);
      float* k = scratch_.k + t * kKvTile * d;
      float* v = scratch_.v + t * kKvTile * v_row;
      plan_.kernels_->pack_keys(plan_.k_ + position * k_stride + head_ * d, k_stride, count, d, k);
      const float* values = plan_.v_ + position * v_stride + head_ * dv;
      if (!in_place) plan_.kernels_->pack_values(values, v_stride, count, dv, v_row, v);
      block.k[t] = k;
      block.v[t] = in_place ? values : v;
    }
  }

  const Impl& plan_;
  const Scratch& scratch_;
  std::int64_t head_;
  std::int64_t rows_;
  std::int64_t kv_len_;
  kernels::KvHeadView view_;
};

void AttentionPlan::Impl::AttendKeys(const Tile& tile, const KvSource& source,
                                     const Scratch& scratch, std::int64_t begin, std::int64_t end,
                                     const AttentionState& state) const noexcept {
  kernels::AttentionTile rows;
  rows.rows = tile.rows();
  rows.head_dim = params_.head_dim;
  rows.v_row = v_row_;
  rows.q = scratch.q;
  rows.first_key = tile.first_key();
  rows.end_key = tile.end_key();
  rows.probs = scratch.probs;
  rows.state = state;
  kernels_->reset(state, tile.rows(), v_row_);
  for (std::int64_t from = begin, to = 0; from < end; from = to) {
    to = std::min(end, from / kAttentionBlock * kAttentionBlock + kAttentionBlock);
    kernels_->attend(rows, source.Load(from, to, tile.end()));
  }
}

void AttentionPlan::Impl::RunItem(const Tensors& tensors, const Scratch& scratch,
                                  std::int64_t item) const noexcept {
  const auto after = std::upper_bound(
      requests_.begin(), requests_.begin() + num_requests_, item,
      [](std::int64_t i, const Request& request) { return i < request.first_item; });
  const Request& request = *(after - 1);
  const std::int64_t parts = std::max<std::int64_t>(1, request.splits);
  const std::int64_t local = item - request.first_item, part = local % parts;
  const std::int64_t head = local / parts / request.tiles;
  // Late tiles see the most keys: they go first, so that short ones fill the gaps at the end.
  const std::int64_t index = request.tiles - 1 - local / parts % request.tiles;

  const Tile tile(*this, request, head, index);
  const KvSource source(*this, request, tensors.layer, head, tile.rows(), scratch);
  const float* q[kAttentionRows];
  tile.Rows(tensors.q, params_.head_dim, q);
  kernels_->pack_queries(q, tile.rows(), params_.head_dim, params_.softmax_scale, scratch.q);

  if (request.splits > 0) {
    const std::int64_t split = request.first_split + part;
    AttendKeys(tile, source, scratch, std::max(tile.begin(), split * kAttentionSplit),
               std::min(tile.end(), (split + 1) * kAttentionSplit),
               PartOf(request, head, index, part));
    return;
  }
  const std::int64_t first_split = tile.begin() / kAttentionSplit;
  AttendKeys(tile, source, scratch, tile.begin(),
             std::min(tile.end(), (first_split + 1) * kAttentionSplit), scratch.total);
  for (std::int64_t from = (first_split + 1) * kAttentionSplit; from < tile.end();
       from += kAttentionSplit) {
    AttendKeys(tile, source, scratch, from, std::min(tile.end(), from + kAttentionSplit),
               scratch.part);
    kernels_->merge(scratch.total, scratch.part, tile.rows(), v_row_);
  }
  tile.Finish(*this, tensors, scratch.total);
}

void AttentionPlan::Impl::MergeTile(const Tensors& tensors, const Scratch& scratch,
                                    std::int64_t item) const noexcept {
  // Requests without tiles to merge share the number of the next one that has them, the last of
  // equals, which upper_bound finds.
  const auto after = std::upper_bound(
      requests_.begin(), requests_.begin() + num_requests_, item,
      [](std::int64_t i, const Request& request) { return i < request.first_merge; });
  const Request& request = *(after - 1);
  const std::int64_t local = item - request.first_merge;
  const std::int64_t head = local / request.tiles, index = local % request.tiles;
  const Tile tile(*this, request, head, index);
  kernels_->reset(scratch.total, tile.rows(), v_row_);
  for (std::int64_t part = 0; part < request.splits; ++part) {
    kernels_->merge(scratch.total, PartOf(request, head, index, part), tile.rows(), v_row_);
  }
  tile.Finish(*this, tensors, scratch.total);
}

void AttentionPlan::Impl::RunOn(Worker& worker, std::int64_t layer, const float* q, float* out,
                                float* lse) noexcept {
  MANYHEAD_DCHECK(worker.count() <= params_.threads);
  const Tensors tensors{layer, q, out, lse};
  const Scratch scratch = ScratchOf(worker.index());
  worker.ForEach(items_, [&](std::int64_t i) { RunItem(tensors, scratch, i); });
  if (merges_ == 0) return;
  worker.ForEach(merges_, [&](std::int64_t i) { MergeTile(tensors, scratch, i); });
}

}  // namespace manyhead
