#include "runtime/cache/token_rows.h"

#include <algorithm>

#include "runtime/platform/dcheck.h"

namespace manyhead {

kernels::KvHeadView HeadViewOf(const CacheHeads& heads, const KvSequence& sequence,
                               std::int64_t layer, std::int64_t index) noexcept {
  MANYHEAD_DCHECK(index >= 0 && index < heads.num_kv_heads(layer));
  const std::size_t place = heads.IndexOf(layer, index);
  const KvHead& head = heads[place];
  HeadTable& table = sequence.heads[place];
  kernels::KvHeadView view;
  view.layout = &head.layout;
  view.pages = table.pages.data();
  view.length = sequence.length;
  view.gaps = table.gaps.data();
  view.num_gaps = table.gaps.size();
  view.sink = head.sink;
  view.recent = head.recent;
  view.scores = table.scores.data();
  return view;
}

bool HoldsToken(const CacheHeads& heads, const KvSequence& sequence, std::int64_t layer,
                std::int64_t index, std::int64_t position) noexcept {
  const std::size_t head = heads.IndexOf(layer, index);
  return !heads[head].off() && position < sequence.length &&
         sequence.heads[head].GapAt(position) == nullptr;
}

void TokenWriter::StoreItem(const KvRows& tokens, std::int64_t item,
                            const Rows& rows) const noexcept {
  const auto [id, position, count, row] = tokens;
  const CacheHeads& all = pages_.heads();
  const std::int64_t heads = all.num_kv_heads(rows.layer), block = all.params().page_size;
  const std::int64_t index = item % heads, in_block = position / block + item / heads;
  const std::size_t place = all.IndexOf(rows.layer, index);
  const KvHead& head = all[place];
  const HeadTable& table = sequences_.Find(id)->heads[place];
  const std::int64_t begin = std::max(position, in_block * block);
  const std::int64_t end = std::min(position + count, (in_block + 1) * block);
  const std::int64_t page_size = head.layout.page_size;
  for (std::int64_t s = begin, next; s < end; s = next) {
    next = std::min(end, (s / page_size + 1) * page_size);
    std::byte* page = head.off() ? nullptr : table.pages[s / page_size];
    if (page == nullptr) continue;
    MANYHEAD_DCHECK(pages_.IsOwn(place, page));
    const std::int64_t from = row + s - position;
    kernels_.store_rows(head.layout, page, s % page_size, next - s,
                        rows.k + from * rows.k_stride + index * head.layout.head_dim, rows.k_stride,
                        rows.v + from * rows.v_stride + index * head.layout.head_dim_v,
                        rows.v_stride);
  }
}

void TokenWriter::WriteOn(Worker& worker, std::span<const KvRows> tokens,
                          const Rows& rows) const noexcept {
  const CacheHeads& all = pages_.heads();
  const std::int64_t heads = all.num_kv_heads(rows.layer), block = all.params().page_size;
  // All items cost the same, so each thread takes a fixed share without a counter; neighbouring
  // items are heads of one block, whose input rows are adjacent.
  std::int64_t item = worker.index();
  for (const KvRows& some : tokens) {
    if (some.count == 0) continue;
    MANYHEAD_DCHECK(sequences_.Find(some.sequence) != nullptr && some.position >= 0 &&
                    some.position + some.count <= sequences_.Find(some.sequence)->length);
    const std::int64_t blocks =
        (some.position + some.count - 1) / block + 1 - some.position / block;
    for (; item < blocks * heads; item += worker.count()) StoreItem(some, item, rows);
    item -= blocks * heads;
  }
  worker.Barrier();
}

}  // namespace manyhead
