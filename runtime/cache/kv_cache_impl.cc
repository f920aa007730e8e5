#include "runtime/cache/kv_cache_impl.h"

#include <utility>

#include "runtime/platform/dcheck.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {

KvCache::Impl::Impl(CacheHeads all_heads, PagePool pool)
    : heads(std::move(all_heads)),
      kernels(KernelsFor(*heads.params().isa).kv),
      pages(heads, std::move(pool)),
      sequences(pages),
      prefixes(pages, sequences) {}

Result<std::unique_ptr<KvCache::Impl>> KvCache::Impl::Create(KvCacheParams params) {
  CacheHeads heads(std::move(params));
  Result<PagePool> pool = PagePool::Create(heads.params().capacity_bytes, heads.page_sizes());
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<Impl>(new Impl(std::move(heads), *std::move(pool)));
}

void KvCache::Impl::ReadRow(SequenceId id, std::int64_t layer, std::int64_t head,
                            std::int64_t position, float* k, float* v) const noexcept {
  MANYHEAD_DCHECK(Holds(id, layer, head, position));
  const kernels::KvHeadView view = HeadView(id, layer, head);
  const std::int64_t page_size = view.layout->page_size;
  kernels->load_row(*view.layout, view.pages[position / page_size], position % page_size, k, v);
}

void KvCache::Impl::TurnOff(std::int64_t layer, std::int64_t head) noexcept {
  if (Head(layer, head).off()) return;
  sequences.EmptyHead(heads.IndexOf(layer, head));
  heads.TurnOff(layer, head);
}

}  // namespace manyhead
