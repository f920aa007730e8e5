#include <algorithm>

#include "runtime/cache/page_layout.h"
#include "runtime/cache/sequence_edits.h"
#include "runtime/platform/dcheck.h"

/// Makes sequences share pages, and ends the sharing.

namespace manyhead {
namespace {

/// Returns true where page p of `table` gets tokens of `from` besides those it has.
bool JoinsPage(const HeadTable& from, const HeadTable& table, std::int64_t p) noexcept {
  return p < table.pages.size() && table.pages[p] != nullptr && from.pages[p] != nullptr;
}

void PlanCopy(PageStore& pages, CacheChange& change, std::size_t head, const HeadTable& from,
              const HeadTable& table, std::int64_t begin, std::int64_t end) {
  const KvHead& info = pages.heads()[head];
  if (info.off()) return;
  const std::int64_t first = begin / info.layout.page_size;
  if (JoinsPage(from, table, first) && !pages.IsOwn(head, table.pages[first]))
    pages.PlanPages(change, head, 1);
  std::int64_t gaps = table.gaps.size() + 1;
  for (const kernels::KvSpan& gap : from.gaps) gaps += gap.begin < end && gap.end > begin;
  pages.PlanRoom(change, head, table, info.PagesFor(end), gaps);
}

void CopyHead(PageStore& pages, std::size_t head, const HeadTable& from, HeadTable& table,
              std::int64_t length, std::int64_t begin, std::int64_t end) noexcept {
  const KvHead& info = pages.heads()[head];
  if (info.off()) return;
  const std::int64_t page_size = info.layout.page_size;
  const std::int64_t first = begin / page_size, last = info.PagesFor(end);
  while (table.pages.size() < last) {
    table.pages.Push(nullptr);
    if (info.scored()) table.scores.Push(0);
  }
  for (std::int64_t p = first; p < last; ++p) {
    if (JoinsPage(from, table, p)) {
      if (!pages.IsOwn(head, table.pages[p]))
        table.pages[p] = pages.AllocateCopy(head, table.pages[p]);
      const std::int64_t stop = std::min(end, (p + 1) * page_size);
      CopyKvTokens(info.layout, from.pages[p], table.pages[p], begin - p * page_size, stop - begin);
    } else if (from.pages[p] != nullptr) {
      pages.Share(head, from.pages[p]);
      table.pages[p] = from.pages[p];
      if (info.scored()) table.scores[p] = from.scores[p];
    }
  }
  table.AddGap(length, begin);
  for (const kernels::KvSpan& gap : from.gaps)
    table.AddGap(std::max(begin, gap.begin), std::min(end, gap.end));
  pages.ReleaseEmpty(head, table, length / page_size, last, end);
}

}  // namespace

Status CopyTokens(PageStore& pages, const KvSequence& from, std::int64_t begin, std::int64_t end,
                  KvSequence& sequence) {
  if (begin == end) return Status();
  MANYHEAD_DCHECK(sequence.length <= begin && begin <= end && end <= from.length);
  CacheChange change = pages.Begin("KvCache::Copy");
  for (std::size_t head = 0; head < pages.heads().size(); ++head)
    PlanCopy(pages, change, head, from.heads[head], sequence.heads[head], begin, end);
  if (Status status = pages.Admit(change); !status.ok()) return status;
  pages.PutTables(change, sequence.heads.get());
  for (std::size_t head = 0; head < pages.heads().size(); ++head)
    CopyHead(pages, head, from.heads[head], sequence.heads[head], sequence.length, begin, end);
  pages.ReturnToOs();
  sequence.length = end;
  sequence.first_query = std::min(end, std::max(sequence.first_query, from.first_query));
  return Status();
}

Status UnshareTokens(PageStore& pages, KvSequence& sequence, std::int64_t layer,
                     std::int64_t position, std::int64_t count) {
  const CacheHeads& heads = pages.heads();
  const auto for_each_shared = [&](auto&& fn) {
    for (std::int64_t h = 0; h < heads.num_kv_heads(layer); ++h) {
      const std::size_t head = heads.IndexOf(layer, h);
      HeadTable& table = sequence.heads[head];
      const std::int64_t page_size = heads[head].layout.page_size;
      const std::int64_t last =
          std::min(table.pages.size(), heads[head].PagesFor(position + count));
      for (std::int64_t p = position / page_size; p < last; ++p)
        if (table.pages[p] != nullptr && !pages.IsOwn(head, table.pages[p]))
          fn(head, table.pages[p]);
    }
  };
  CacheChange change = pages.Begin("KvCache::Write");
  for_each_shared([&](std::size_t head, std::byte*) { pages.PlanPages(change, head, 1); });
  if (change.page_bytes == 0) return Status();
  if (Status status = pages.Admit(change); !status.ok()) return status;
  for_each_shared(
      [&](std::size_t head, std::byte*& page) { page = pages.AllocateCopy(head, page); });
  return Status();
}

}  // namespace manyhead
