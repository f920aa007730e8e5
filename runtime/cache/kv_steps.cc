#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/page_layout.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/errors.h"

/// How sequences grow: what a step evicts before it takes pages, and copies of other sequences.

namespace manyhead {
namespace {

/// Takes the marks of MarkOverBudget away again, whatever happens between.
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

bool IsMarked(const HeadTable& table, std::int64_t page) noexcept { return table.scores[page] < 0; }

}  // namespace

/// Whether the page that token `length` goes to is there, but not to be written by this sequence
/// alone, or was dropped.
bool KvCache::Impl::NeedsOwnLast(std::size_t head, const HeadTable& table,
                                 std::int64_t length) const noexcept {
  return !heads_[head].off() && length % heads_[head].layout.page_size != 0 &&
         !IsOwn(head, table.pages.back());
}

void KvCache::Impl::PlanStep(Change& change, std::size_t head, HeadTable& table,
                             std::int64_t length, std::int64_t count) {
  const KvHead& info = heads_[head];
  const std::int64_t marked = MarkOverBudget(info, table, length);
  const PageRange old = OutOfWindow(info, table, length);
  std::int64_t freed = 0;
  for (std::int64_t p = old.first; p < old.last; ++p) freed += IsOwn(head, table.pages[p]);
  for (std::int64_t p = 0; marked > 0 && p < table.pages.size(); ++p)
    freed += IsMarked(table, p) && IsOwn(head, table.pages[p]);
  const std::int64_t pages = info.PagesFor(length + count);
  const bool own_last = count > 0 && NeedsOwnLast(head, table, length);
  PlanPages(change, head, pages - table.pages.size() + own_last - freed);
  PlanRoom(change, head, table, pages,
           table.holes.size() + marked + (old.first < old.last ? 1 : 0));
}

bool KvCache::Impl::EvictFrom(std::size_t head, HeadTable& table, std::int64_t length) noexcept {
  const std::int64_t page_size = heads_[head].layout.page_size;
  const auto give = [&](std::int64_t p) {
    if (table.pages[p] != nullptr) Give(head, table.pages[p]);
    table.pages[p] = nullptr;
  };
  const PageRange old = OutOfWindow(heads_[head], table, length);
  for (std::int64_t p = old.first; p < old.last; ++p) give(p);
  table.AddHole(old.first * page_size, old.last * page_size);
  bool any = old.first < old.last;
  for (std::int64_t p = 0; table.marked && p < table.scores.size(); ++p) {
    if (!IsMarked(table, p)) continue;
    give(p);
    table.AddHole(p * page_size, (p + 1) * page_size);
    any = true;
  }
  return any;
}

void KvCache::Impl::GrowHead(std::size_t head, HeadTable& table, std::int64_t length,
                             std::int64_t count) noexcept {
  if (NeedsOwnLast(head, table, length)) table.pages.back() = TakeCopy(head, table.pages.back());
  const std::int64_t pages = heads_[head].PagesFor(length + count);
  while (table.pages.size() < pages) {
    table.pages.Push(Take(head));
    if (heads_[head].scored()) table.scores.Push(0);
  }
}

Status KvCache::Impl::Reserve(SequenceId id, std::int64_t count, const char* function) {
  Sequence& sequence = *Find(id);
  const std::int64_t length = sequence.length;
  if (count > params_.max_tokens - length) return TooLong(function, length, count);
  const MarkGuard guard(sequence.heads.get(), heads_.size());
  Change change = Begin(function);
  for (std::size_t head = 0; head < heads_.size(); ++head)
    PlanStep(change, head, sequence.heads[head], length, count);
  if (Status status = Admit(change); !status.ok()) return status;
  PutTables(change, sequence);
  // All heads give before any takes: the pool's lists are made for what is left in use.
  bool evicted = false;
  for (std::size_t head = 0; head < heads_.size(); ++head)
    evicted |= EvictFrom(head, sequence.heads[head], length);
  // Head by head: the pages of a prompt are neighbours, which streams better than every n-th.
  for (std::size_t head = 0; count > 0 && head < heads_.size(); ++head)
    GrowHead(head, sequence.heads[head], length, count);
  if (evicted) {
    sequence.first_query = length;
    pool_.Trim();
  }
  sequence.length += count;
  return Status();
}

Status KvCache::Impl::TooLong(const char* function, std::int64_t length, std::int64_t count) const {
  return OutOfPages(function, length, " + ", count, " tokens; max_tokens = ", params_.max_tokens);
}

/// Whether page p of `table`, which ends at `length`, gets tokens beside those it has.
bool KvCache::Impl::JoinsPage(const HeadTable& from, const HeadTable& table,
                              std::int64_t p) const noexcept {
  return p < table.pages.size() && table.pages[p] != nullptr && from.pages[p] != nullptr;
}

void KvCache::Impl::PlanCopy(Change& change, std::size_t head, const HeadTable& from,
                             const HeadTable& table, std::int64_t begin, std::int64_t end) {
  const KvHead& info = heads_[head];
  if (info.off()) return;
  const std::int64_t first = begin / info.layout.page_size;
  if (JoinsPage(from, table, first) && !IsOwn(head, table.pages[first])) PlanPages(change, head, 1);
  std::int64_t holes = table.holes.size() + 1;
  for (const kernels::KvSpan& hole : from.holes) holes += hole.begin < end && hole.end > begin;
  PlanRoom(change, head, table, info.PagesFor(end), holes);
}

void KvCache::Impl::CopyHead(std::size_t head, const HeadTable& from, HeadTable& table,
                             std::int64_t length, std::int64_t begin, std::int64_t end) noexcept {
  const KvHead& info = heads_[head];
  if (info.off()) return;
  const std::int64_t page_size = info.layout.page_size;
  const std::int64_t first = begin / page_size, last = info.PagesFor(end);
  while (table.pages.size() < last) {
    table.pages.Push(nullptr);
    if (info.scored()) table.scores.Push(0);
  }
  for (std::int64_t p = first; p < last; ++p) {
    if (JoinsPage(from, table, p)) {
      if (!IsOwn(head, table.pages[p])) table.pages[p] = TakeCopy(head, table.pages[p]);
      const std::int64_t stop = std::min(end, (p + 1) * page_size);
      CopyKvTokens(info.layout, from.pages[p], table.pages[p], begin - p * page_size, stop - begin);
    } else if (from.pages[p] != nullptr) {
      pool_.Share(info.arena, from.pages[p]);
      table.pages[p] = from.pages[p];
      if (info.scored()) table.scores[p] = from.scores[p];
    }
  }
  table.AddHole(length, begin);
  for (const kernels::KvSpan& hole : from.holes)
    table.AddHole(std::max(begin, hole.begin), std::min(end, hole.end));
  GiveEmpty(head, table, length / page_size, last, end);
}

Status KvCache::Impl::Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId id) {
  constexpr const char* kName = "KvCache::Copy";
  if (begin == end) return Status();
  const Sequence& from = *Find(source);
  Sequence& sequence = *Find(id);
  MANYHEAD_DCHECK(sequence.length <= begin && begin <= end && end <= from.length);
  Change change = Begin(kName);
  for (std::size_t head = 0; head < heads_.size(); ++head)
    PlanCopy(change, head, from.heads[head], sequence.heads[head], begin, end);
  if (Status status = Admit(change); !status.ok()) return status;
  PutTables(change, sequence);
  for (std::size_t head = 0; head < heads_.size(); ++head)
    CopyHead(head, from.heads[head], sequence.heads[head], sequence.length, begin, end);
  pool_.Trim();
  sequence.length = end;
  sequence.first_query = std::min(end, std::max(sequence.first_query, from.first_query));
  return Status();
}

}  // namespace manyhead
