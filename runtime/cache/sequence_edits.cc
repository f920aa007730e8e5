#include "runtime/cache/sequence_edits.h"

#include <algorithm>

#include "runtime/cache/eviction.h"
#include "runtime/platform/dcheck.h"

/// Truncates sequences, and drops ranges of tokens.

namespace manyhead {

std::int64_t ExactLengthOf(const CacheHeads& heads, const KvSequence& sequence,
                           std::int64_t length) noexcept {
  for (std::int64_t before = -1; before != length;) {
    before = length;
    for (std::size_t head = 0; head < heads.size(); ++head)
      length = ExactLengthOf(heads[head], sequence.heads[head], sequence.length, length);
  }
  return length;
}

bool TruncateSequence(PageStore& pages, KvSequence& sequence, std::int64_t length) noexcept {
  MANYHEAD_DCHECK(length >= 0 && length <= sequence.length);
  const CacheHeads& heads = pages.heads();
  const bool exact = ExactLengthOf(heads, sequence, length) == length;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    HeadTable& table = sequence.heads[head];
    const std::int64_t kept = heads[head].PagesFor(length);
    for (; table.pages.size() > kept; table.pages.Pop())
      if (table.pages.back() != nullptr) pages.Release(head, table.pages.back());
    table.CutGaps(length);
    if (heads[head].scored()) table.scores.Shorten(kept);
    if (kept > 0) pages.ReleaseEmpty(head, table, kept - 1, kept, length);
  }
  pages.ReturnToOs();
  sequence.length = length;
  sequence.first_query = std::min(sequence.first_query, length);
  return exact;
}

namespace {

void PlanDrop(PageStore& pages, CacheChange& change, std::size_t head, const KvSequence& sequence,
              std::int64_t begin, std::int64_t end) {
  const HeadTable& table = sequence.heads[head];
  const KvHead& info = pages.heads()[head];
  const std::int64_t page_size = info.layout.page_size;
  std::int64_t freed = 0;
  for (std::int64_t p = begin / page_size; p < info.PagesFor(end); ++p) {
    const std::int64_t first = p * page_size, last = std::min(sequence.length, first + page_size);
    const std::int64_t dropped = table.HeldIn(std::max(begin, first), std::min(end, last));
    freed += pages.IsOwn(head, table.pages[p]) && table.HeldIn(first, last) == dropped;
  }
  pages.PlanPages(change, head, -freed);
  pages.PlanRoom(change, head, table, 0, table.gaps.size() + 1);
}

}  // namespace

Status DropTokens(PageStore& pages, KvSequence& sequence, std::int64_t begin, std::int64_t end) {
  if (begin == end) return Status();
  const CacheHeads& heads = pages.heads();
  CacheChange change = pages.Begin("KvCache::Drop");
  for (std::size_t head = 0; head < heads.size(); ++head)
    if (!heads[head].off()) PlanDrop(pages, change, head, sequence, begin, end);
  if (Status status = pages.Admit(change); !status.ok()) return status;
  pages.PutTables(change, sequence.heads.get());
  for (std::size_t head = 0; head < heads.size(); ++head) {
    if (heads[head].off()) continue;
    HeadTable& table = sequence.heads[head];
    table.AddGap(begin, end);
    pages.ReleaseEmpty(head, table, begin / heads[head].layout.page_size, heads[head].PagesFor(end),
                       sequence.length);
  }
  pages.ReturnToOs();
  return Status();
}

}  // namespace manyhead
