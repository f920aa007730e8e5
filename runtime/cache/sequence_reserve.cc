#include <algorithm>
#include <cstddef>

#include "runtime/cache/eviction.h"
#include "runtime/cache/sequence_edits.h"
#include "runtime/platform/errors.h"

/// Extends a sequence, and evicts tokens before a step allocates pages.

namespace manyhead {
namespace {

/// Removes the marks of MarkOverBudget when it is destroyed.
class MarkGuard {
 public:
  MarkGuard(HeadTable* tables, std::size_t count) noexcept : tables_(tables), count_(count) {}
  MarkGuard(const MarkGuard&) = delete;
  MarkGuard& operator=(const MarkGuard&) = delete;
  ~MarkGuard() {
    for (std::size_t i = 0; i < count_; ++i) Unmark(tables_[i]);
  }

 private:
  HeadTable* tables_;
  std::size_t count_;
};

/// Returns true where the page of token `length` exists but is shared with another sequence, or was
/// dropped.
bool NeedsOwnLast(const PageStore& pages, std::size_t head, const HeadTable& table,
                  std::int64_t length) noexcept {
  const KvHead& info = pages.heads()[head];
  return !info.off() && length % info.layout.page_size != 0 &&
         !pages.IsOwn(head, table.pages.back());
}

void PlanStep(PageStore& pages, CacheChange& change, std::size_t head, HeadTable& table,
              std::int64_t length, std::int64_t count) {
  const KvHead& info = pages.heads()[head];
  const std::int64_t marked = MarkOverBudget(info, table, length);
  const PageRange old = OutOfWindow(info, table, length);
  std::int64_t freed = 0;
  for (std::int64_t p = old.first; p < old.last; ++p) freed += pages.IsOwn(head, table.pages[p]);
  for (std::int64_t p = 0; marked > 0 && p < table.pages.size(); ++p)
    freed += IsMarked(table, p) && pages.IsOwn(head, table.pages[p]);
  const std::int64_t wanted = info.PagesFor(length + count);
  const bool own_last = count > 0 && NeedsOwnLast(pages, head, table, length);
  pages.PlanPages(change, head, wanted - table.pages.size() + own_last - freed);
  pages.PlanRoom(change, head, table, wanted,
                 table.gaps.size() + marked + (old.first < old.last ? 1 : 0));
}

/// Evicts tokens of one head; returns true where it evicted any.
bool EvictFrom(PageStore& pages, std::size_t head, HeadTable& table, std::int64_t length) noexcept {
  const KvHead& info = pages.heads()[head];
  const std::int64_t page_size = info.layout.page_size;
  const auto give = [&](std::int64_t p) {
    if (table.pages[p] != nullptr) pages.Release(head, table.pages[p]);
    table.pages[p] = nullptr;
  };
  const PageRange old = OutOfWindow(info, table, length);
  for (std::int64_t p = old.first; p < old.last; ++p) give(p);
  table.AddGap(old.first * page_size, old.last * page_size);
  bool any = old.first < old.last;
  for (std::int64_t p = 0; table.marked && p < table.scores.size(); ++p) {
    if (!IsMarked(table, p)) continue;
    give(p);
    table.AddGap(p * page_size, (p + 1) * page_size);
    any = true;
  }
  return any;
}

void GrowHead(PageStore& pages, std::size_t head, HeadTable& table, std::int64_t length,
              std::int64_t count) noexcept {
  if (NeedsOwnLast(pages, head, table, length))
    table.pages.back() = pages.AllocateCopy(head, table.pages.back());
  const KvHead& info = pages.heads()[head];
  const std::int64_t wanted = info.PagesFor(length + count);
  while (table.pages.size() < wanted) {
    table.pages.Push(pages.Allocate(head));
    if (info.scored()) table.scores.Push(0);
  }
}

}  // namespace

Status ReserveTokens(PageStore& pages, KvSequence& sequence, std::int64_t count,
                     const char* function) {
  const std::int64_t length = sequence.length, most = pages.heads().params().max_tokens;
  const std::size_t heads = pages.heads().size();
  if (count > most - length)
    return OutOfPages(function, length, " + ", count, " tokens; max_tokens = ", most);
  const MarkGuard guard(sequence.heads.get(), heads);
  CacheChange change = pages.Begin(function);
  for (std::size_t head = 0; head < heads; ++head)
    PlanStep(pages, change, head, sequence.heads[head], length, count);
  if (Status status = pages.Admit(change); !status.ok()) return status;
  pages.PutTables(change, sequence.heads.get());
  // All heads release pages before any allocates: the pool's lists have room for the pages in use
  // afterwards.
  bool evicted = false;
  for (std::size_t head = 0; head < heads; ++head) {
    if (!EvictFrom(pages, head, sequence.heads[head], length)) continue;
    const std::int64_t margin = pages.heads()[head].params.policy.margin;
    sequence.first_query = std::max(sequence.first_query, length - margin);
    evicted = true;
  }
  // Pages are allocated head by head: the pages of a prompt are then adjacent, which streams
  // better.
  for (std::size_t head = 0; count > 0 && head < heads; ++head)
    GrowHead(pages, head, sequence.heads[head], length, count);
  if (evicted) pages.ReturnToOs();
  sequence.length += count;
  return Status();
}

}  // namespace manyhead
