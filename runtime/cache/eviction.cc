#include "runtime/cache/eviction.h"

#include <algorithm>

#include "runtime/platform/math.h"

namespace manyhead {

PageRange OutOfWindow(const KvHead& head, const HeadTable& table, std::int64_t length) noexcept {
  if (head.off() || head.kept == kernels::kSeesAll) return {};
  const std::int64_t page = head.layout.page_size;
  // The first token that a query sees once the sequence has lost its margin.
  const std::int64_t kept = length - head.kept + 1;
  std::int64_t first = CeilDiv(head.sink, page);
  if (const kernels::KvSpan* gap = table.GapAt(first * page))
    first = std::max(first, gap->end / page);
  return {first, std::max(first, kept / page)};
}

std::int64_t MarkOverBudget(const KvHead& head, HeadTable& table, std::int64_t length) noexcept {
  if (!head.scored()) return 0;
  const std::int64_t page = head.layout.page_size;
  const KvPolicy& policy = head.params.policy;
  std::int64_t over = table.HeldIn(0, length) - policy.budget, marked = 0;
  const std::int64_t first = CeilDiv(policy.sink, page);
  // The page of the next token is kept as well.
  const std::int64_t last = std::max<std::int64_t>(0, length - policy.recent) / page;
  for (; over > 0; ++marked) {
    std::int64_t least = -1;
    for (std::int64_t p = first; p < last; ++p)
      if (table.pages[p] != nullptr && table.scores[p] >= 0 &&
          (least < 0 || table.scores[p] < table.scores[least]))
        least = p;
    if (least < 0) break;  // all other pages are protected
    table.scores[least] = ~table.scores[least];
    table.marked = true;
    over -= table.HeldIn(least * page, (least + 1) * page);
  }
  return marked;
}

void Unmark(HeadTable& table) noexcept {
  if (!table.marked) return;
  for (std::int64_t& score : table.scores)
    if (score < 0) score = ~score;
  table.marked = false;
}

std::int64_t ExactLengthOf(const KvHead& head, const HeadTable& table, std::int64_t length,
                           std::int64_t wanted) noexcept {
  if (wanted == length || head.off()) return wanted;
  if (head.scored()) return 0;  // the scores contain the dropped tokens' queries
  if (head.recent == kernels::kSeesAll) return wanted;
  for (std::int64_t i = table.gaps.size() - 1; i >= 0; --i) {
    const kernels::KvSpan& gap = table.gaps[i];
    if (gap.begin >= wanted) continue;
    const std::int64_t seen = wanted - head.recent + 1;
    if (gap.begin < head.sink || std::min(gap.end, wanted) > seen) wanted = gap.begin;
  }
  return wanted;
}

}  // namespace manyhead
