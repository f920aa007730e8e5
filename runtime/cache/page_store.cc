#include "runtime/cache/page_store.h"

#include <algorithm>
#include <utility>

#include "runtime/cache/table_bytes.h"
#include "runtime/platform/errors.h"

namespace manyhead {

PageStore::PageStore(const CacheHeads& heads, PagePool pool)
    : heads_(heads),
      pool_(std::move(pool)),
      table_bytes_(FixedTableBytes(heads.params())),
      head_pages_(heads.size(), 0),
      added_pages_(heads.page_sizes().size(), 0) {}

CacheChange PageStore::Begin(const char* function) noexcept {
  std::fill(added_pages_.begin(), added_pages_.end(), 0);
  CacheChange change;
  change.function = function;
  return change;
}

void PageStore::PlanPages(CacheChange& change, std::size_t head, std::int64_t pages) noexcept {
  added_pages_[heads_[head].arena] += pages;
  change.page_bytes += pages * heads_[head].layout.page_bytes;
}

void PageStore::PlanRoom(CacheChange& change, std::size_t head, const HeadTable& table,
                         std::int64_t pages, std::int64_t gaps) const {
  const KvHead& info = heads_[head];
  GrownTable grown;
  grown.head = head;
  if (pages > table.pages.room()) grown.pages_room = info.RoomForPages(pages);
  if (gaps > table.gaps.room()) grown.gaps_room = KvHead::RoomForGaps(gaps);
  if (grown.pages_room == 0 && grown.gaps_room == 0) return;
  const std::int64_t pages_room = std::max(grown.pages_room, table.pages.room());
  const std::int64_t gaps_room = std::max(grown.gaps_room, table.gaps.room());
  change.table_bytes += info.TableBytes(pages_room, gaps_room) - table.bytes();
  change.grown.push_back(std::move(grown));
}

Status PageStore::CheckRoom(const CacheChange& change) const {
  const std::int64_t needed = change.page_bytes + change.table_bytes +
                              pool_.ListBytesWith(added_pages_) - pool_.list_bytes();
  const std::int64_t capacity = heads_.params().capacity_bytes;
  const std::int64_t free = capacity - pool_.used_bytes() - table_bytes();
  if (needed <= std::max<std::int64_t>(0, free)) return Status();
  return OutOfPages(change.function, "pages and tables need ", needed, " more bytes; ", free,
                    " of capacity_bytes = ", capacity, " are free");
}

Status PageStore::Admit(CacheChange& change) {
  if (Status status = CheckRoom(change); !status.ok()) return status;
  for (GrownTable& grown : change.grown) {
    grown.table.pages = Table<std::byte*>(grown.pages_room);
    if (heads_[grown.head].scored()) grown.table.scores = Table<std::int64_t>(grown.pages_room);
    grown.table.gaps = Table<kernels::KvSpan>(grown.gaps_room);
  }
  Prepare();
  return Status();
}

void PageStore::PutTables(CacheChange& change, HeadTable* tables) noexcept {
  for (GrownTable& grown : change.grown) {
    HeadTable& table = tables[grown.head];
    if (grown.pages_room > 0) {
      table.pages.MoveInto(std::move(grown.table.pages));
      if (heads_[grown.head].scored()) table.scores.MoveInto(std::move(grown.table.scores));
    }
    if (grown.gaps_room > 0) table.gaps.MoveInto(std::move(grown.table.gaps));
  }
  table_bytes_ += change.table_bytes;
}

std::byte* PageStore::Allocate(std::size_t head) noexcept {
  ++head_pages_[head];
  return pool_.Allocate(heads_[head].arena);
}

void PageStore::Release(std::size_t head, std::byte* page) noexcept {
  if (pool_.Release(heads_[head].arena, page)) --head_pages_[head];
}

std::byte* PageStore::AllocateCopy(std::size_t head, std::byte* page) noexcept {
  std::byte* own = Allocate(head);
  if (page == nullptr) return own;
  std::copy_n(page, heads_[head].layout.page_bytes, own);
  Release(head, page);
  return own;
}

void PageStore::ReleaseEmpty(std::size_t head, HeadTable& table, std::int64_t first,
                             std::int64_t last, std::int64_t length) noexcept {
  const std::int64_t page_size = heads_[head].layout.page_size;
  for (std::int64_t p = first; p < last; ++p) {
    if (table.pages[p] == nullptr ||
        table.HeldIn(p * page_size, std::min(length, (p + 1) * page_size)) > 0)
      continue;
    Release(head, table.pages[p]);
    table.pages[p] = nullptr;
  }
}

}  // namespace manyhead
