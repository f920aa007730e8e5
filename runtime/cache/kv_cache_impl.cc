#include "runtime/cache/kv_cache_impl.h"

#include <algorithm>
#include <utility>

#include "runtime/cache/page_layout.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"

namespace manyhead {

KvCache::Impl::Impl(KvCacheParams params, PagePool pool) noexcept
    : params_(std::move(params)), kernels_(KernelsFor(*params_.isa).kv), pool_(std::move(pool)) {}

std::int64_t KvCache::Impl::FixedBytes(const KvCacheParams& params) noexcept {
  std::int64_t heads = 0;
  for (const KvLayerShape& shape : params.layers) heads += shape.num_kv_heads;
  return heads * static_cast<std::int64_t>(sizeof(KvHead) + sizeof(std::int64_t)) +
         static_cast<std::int64_t>(params.layers.size() * sizeof(Layer));
}

Result<std::unique_ptr<KvCache::Impl>> KvCache::Impl::Create(KvCacheParams params) {
  std::vector<Layer> layers;
  std::vector<KvHead> heads;
  std::vector<std::int64_t> sizes;  // of pages, each once: an arena each
  for (std::size_t l = 0; l < params.layers.size(); ++l) {
    layers.push_back({params.layers[l].num_kv_heads, heads.size()});
    for (const KvHeadParams& head_params : params.heads[l]) {
      KvHead head = MakeKvHead(params.layers[l], head_params, params.page_size);
      const auto size = std::find(sizes.begin(), sizes.end(), head.layout.page_bytes);
      head.arena = static_cast<std::size_t>(size - sizes.begin());
      if (size == sizes.end()) sizes.push_back(head.layout.page_bytes);
      heads.push_back(head);
    }
  }
  Result<PagePool> pool = PagePool::Create(params.capacity_bytes, sizes);
  if (!pool.ok()) return pool.status();

  std::unique_ptr<Impl> impl(new Impl(std::move(params), std::move(*pool)));
  impl->layers_ = std::move(layers);
  impl->head_pages_.resize(heads.size(), 0);
  impl->added_pages_.resize(sizes.size(), 0);
  impl->heads_ = std::move(heads);
  impl->fixed_bytes_ = FixedBytes(impl->params_);
  for (const KvHead& head : impl->heads_)
    impl->page_row_bytes_ += KvRowBytes(head, impl->params_.page_size);
  return impl;
}

kernels::KvHeadView KvCache::Impl::HeadView(SequenceId id, std::int64_t layer,
                                            std::int64_t index) const noexcept {
  const Sequence* sequence = Find(id);
  MANYHEAD_DCHECK(sequence != nullptr && index >= 0 && index < layers_[layer].num_kv_heads);
  const KvHead& head = Head(layer, index);
  HeadTable& table = sequence->heads[HeadIndex(layer, index)];
  kernels::KvHeadView view;
  view.layout = &head.layout;
  view.pages = table.pages.data();
  view.length = sequence->length;
  view.holes = table.holes.data();
  view.num_holes = table.holes.size();
  view.sink = head.sink;
  view.recent = head.recent;
  view.scores = table.scores.data();
  return view;
}

bool KvCache::Impl::Holds(SequenceId id, std::int64_t layer, std::int64_t index,
                          std::int64_t position) const noexcept {
  const Sequence* sequence = Find(id);
  return !Head(layer, index).off() && position < sequence->length &&
         sequence->heads[HeadIndex(layer, index)].HoleAt(position) == nullptr;
}

void KvCache::Impl::StoreItem(const KvRows& tokens, std::int64_t layer, std::int64_t item,
                              const float* k, const float* v, std::int64_t k_stride,
                              std::int64_t v_stride) noexcept {
  const auto [id, position, count, row] = tokens;
  const std::int64_t heads = layers_[layer].num_kv_heads, block = params_.page_size;
  const std::int64_t index = item % heads, in_block = position / block + item / heads;
  const KvHead& head = Head(layer, index);
  const HeadTable& table = Find(id)->heads[HeadIndex(layer, index)];
  const std::int64_t begin = std::max(position, in_block * block);
  const std::int64_t end = std::min(position + count, (in_block + 1) * block);
  const std::int64_t page_size = head.layout.page_size;
  for (std::int64_t s = begin, next; s < end; s = next) {
    next = std::min(end, (s / page_size + 1) * page_size);
    std::byte* page = head.off() ? nullptr : table.pages[s / page_size];
    if (page == nullptr) continue;
    MANYHEAD_DCHECK(IsOwn(HeadIndex(layer, index), page));
    const std::int64_t from = row + s - position;
    kernels_->store_rows(head.layout, page, s % page_size, next - s,
                         k + from * k_stride + index * head.layout.head_dim, k_stride,
                         v + from * v_stride + index * head.layout.head_dim_v, v_stride);
  }
}

void KvCache::Impl::WriteOn(Worker& worker, std::int64_t layer, std::span<const KvRows> tokens,
                            const float* k, const float* v, std::int64_t k_stride,
                            std::int64_t v_stride) noexcept {
  const std::int64_t heads = layers_[layer].num_kv_heads, block = params_.page_size;
  // Items are alike, so a fixed share each needs no counter; neighbours are heads of one block,
  // whose input rows lie side by side.
  std::int64_t item = worker.index();
  for (const KvRows& some : tokens) {
    if (some.count == 0) continue;
    MANYHEAD_DCHECK(Find(some.sequence) != nullptr && some.position >= 0 &&
                    some.position + some.count <= Length(some.sequence));
    const std::int64_t blocks =
        (some.position + some.count - 1) / block + 1 - some.position / block;
    for (; item < blocks * heads; item += worker.count())
      StoreItem(some, layer, item, k, v, k_stride, v_stride);
    item -= blocks * heads;
  }
  worker.Barrier();
}

void KvCache::Impl::ReadRow(SequenceId id, std::int64_t layer, std::int64_t head,
                            std::int64_t position, float* k, float* v) const noexcept {
  MANYHEAD_DCHECK(Holds(id, layer, head, position));
  const kernels::KvHeadView view = HeadView(id, layer, head);
  const std::int64_t page_size = view.layout->page_size;
  kernels_->load_row(*view.layout, view.pages[position / page_size], position % page_size, k, v);
}

KvCache::Impl::Change KvCache::Impl::Begin(const char* function) noexcept {
  std::fill(added_pages_.begin(), added_pages_.end(), 0);
  Change change;
  change.function = function;
  return change;
}

void KvCache::Impl::PlanPages(Change& change, std::size_t head, std::int64_t pages) noexcept {
  added_pages_[heads_[head].arena] += pages;
  change.page_bytes += pages * heads_[head].layout.page_bytes;
}

void KvCache::Impl::PlanRoom(Change& change, std::size_t head, const HeadTable& table,
                             std::int64_t pages, std::int64_t holes) {
  const KvHead& info = heads_[head];
  Grown grown;
  grown.head = head;
  if (pages > table.pages.room()) grown.pages_room = info.RoomForPages(pages);
  if (holes > table.holes.room()) grown.holes_room = KvHead::RoomForHoles(holes);
  if (grown.pages_room == 0 && grown.holes_room == 0) return;
  const std::int64_t pages_room = std::max(grown.pages_room, table.pages.room());
  const std::int64_t holes_room = std::max(grown.holes_room, table.holes.room());
  change.table_bytes += info.TableBytes(pages_room, holes_room) - table.bytes();
  change.grown.push_back(std::move(grown));
}

Status KvCache::Impl::CheckRoom(const Change& change) const {
  const std::int64_t needed = change.page_bytes + change.table_bytes +
                              pool_.ListBytesWith(added_pages_) - pool_.list_bytes();
  const std::int64_t free = params_.capacity_bytes - pool_.used_bytes() - table_bytes();
  if (needed <= std::max<std::int64_t>(0, free)) return Status();
  return OutOfPages(change.function, "pages and tables need ", needed, " more bytes; ", free,
                    " of capacity_bytes = ", params_.capacity_bytes, " are free");
}

Status KvCache::Impl::Admit(Change& change) {
  if (Status status = CheckRoom(change); !status.ok()) return status;
  for (Grown& grown : change.grown) {
    grown.table.pages = Table<std::byte*>(grown.pages_room);
    if (heads_[grown.head].scored()) grown.table.scores = Table<std::int64_t>(grown.pages_room);
    grown.table.holes = Table<kernels::KvSpan>(grown.holes_room);
  }
  pool_.Prepare(added_pages_);
  return Status();
}

void KvCache::Impl::PutTables(Change& change, Sequence& sequence) noexcept {
  for (Grown& grown : change.grown) {
    HeadTable& table = sequence.heads[grown.head];
    if (grown.pages_room > 0) {
      table.pages.MoveInto(std::move(grown.table.pages));
      if (heads_[grown.head].scored()) table.scores.MoveInto(std::move(grown.table.scores));
    }
    if (grown.holes_room > 0) table.holes.MoveInto(std::move(grown.table.holes));
  }
  sequence_bytes_ += change.table_bytes;
}

std::byte* KvCache::Impl::Take(std::size_t head) noexcept {
  ++head_pages_[head];
  return pool_.Take(heads_[head].arena);
}

void KvCache::Impl::Give(std::size_t head, std::byte* page) noexcept {
  if (pool_.Give(heads_[head].arena, page)) --head_pages_[head];
}

std::byte* KvCache::Impl::TakeCopy(std::size_t head, std::byte* page) noexcept {
  std::byte* own = Take(head);
  if (page == nullptr) return own;
  std::copy_n(page, heads_[head].layout.page_bytes, own);
  Give(head, page);
  return own;
}

Status KvCache::Impl::Unshare(SequenceId id, std::int64_t layer, std::int64_t position,
                              std::int64_t count) {
  Sequence& sequence = *Find(id);
  const auto for_each_shared = [&](auto&& fn) {
    for (std::int64_t h = 0; h < layers_[layer].num_kv_heads; ++h) {
      const std::size_t head = HeadIndex(layer, h);
      HeadTable& table = sequence.heads[head];
      const std::int64_t page_size = heads_[head].layout.page_size;
      const std::int64_t last =
          std::min(table.pages.size(), heads_[head].PagesFor(position + count));
      for (std::int64_t p = position / page_size; p < last; ++p)
        if (table.pages[p] != nullptr && !IsOwn(head, table.pages[p])) fn(head, table.pages[p]);
    }
  };
  Change change = Begin("KvCache::Write");
  for_each_shared([&](std::size_t head, std::byte*) { PlanPages(change, head, 1); });
  if (change.page_bytes == 0) return Status();
  if (Status status = Admit(change); !status.ok()) return status;
  for_each_shared([&](std::size_t head, std::byte*& page) { page = TakeCopy(head, page); });
  return Status();
}

KvUsage KvCache::Impl::Usage() const {
  KvUsage usage;
  usage.capacity_bytes = params_.capacity_bytes;
  usage.used_bytes = pool_.used_bytes();
  usage.table_bytes = table_bytes();
  for (const Layer& layer : layers_) {
    usage.head_bytes.emplace_back();
    for (std::int64_t h = 0; h < layer.num_kv_heads; ++h) {
      const std::size_t head = layer.first_head + static_cast<std::size_t>(h);
      usage.head_bytes.back().push_back(head_pages_[head] * heads_[head].layout.page_bytes);
    }
  }
  return usage;
}

KvUsage KvCache::Impl::Usage(SequenceId id) const {
  KvUsage usage;
  usage.capacity_bytes = params_.capacity_bytes;
  usage.table_bytes = SequenceBytes(static_cast<std::int64_t>(heads_.size()));
  for (std::size_t head = 0; head < heads_.size(); ++head)
    usage.table_bytes += Find(id)->heads[head].bytes();
  for (const auto& layer : HeadUsage(id)) {
    usage.head_bytes.emplace_back();
    for (const KvHeadUsage& head : layer) {
      usage.head_bytes.back().push_back(head.pages * head.page_bytes);
      usage.used_bytes += head.pages * head.page_bytes;
    }
  }
  return usage;
}

std::vector<std::vector<KvHeadUsage>> KvCache::Impl::HeadUsage(SequenceId id) const {
  const Sequence& sequence = *Find(id);
  std::vector<std::vector<KvHeadUsage>> usage(layers_.size());
  for (std::size_t l = 0; l < layers_.size(); ++l)
    for (std::int64_t h = 0; h < layers_[l].num_kv_heads; ++h) {
      const std::size_t head = layers_[l].first_head + static_cast<std::size_t>(h);
      const HeadTable& table = sequence.heads[head];
      KvHeadUsage entry;
      entry.page_bytes = heads_[head].layout.page_bytes;
      entry.tokens = heads_[head].off() ? 0 : table.HeldIn(0, sequence.length);
      entry.pages = std::count_if(table.pages.begin(), table.pages.end(),
                                  [](const std::byte* page) { return page != nullptr; });
      usage[l].push_back(entry);
    }
  return usage;
}

}  // namespace manyhead
