#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "runtime/cache/kv_head.h"
#include "runtime/cache/table.h"

namespace manyhead {

/// The tokens that a KV head holds of one sequence: token s lies in pages[s / page_size], unless it
/// is in a gap. A page whose tokens are all in gaps is null.
struct HeadTable {
  Table<std::byte*> pages;
  Table<std::int64_t> scores;   ///< [page] scores, where the head is scored
  Table<kernels::KvSpan> gaps;  ///< gaps, ascending and not adjacent
  bool marked = false;          ///< some scores are marked, see MarkOverBudget

  std::int64_t bytes() const noexcept { return pages.bytes() + scores.bytes() + gaps.bytes(); }

  /// Returns the number of tokens of [begin, end) that are held.
  std::int64_t HeldIn(std::int64_t begin, std::int64_t end) const noexcept;
  /// Returns the gap that contains `position`; null if none does.
  const kernels::KvSpan* GapAt(std::int64_t position) const noexcept;
  /// Adds [begin, end) to the gaps, of which there may be one more afterwards.
  void AddGap(std::int64_t begin, std::int64_t end) noexcept;
  /// Removes gaps from position `length` on.
  void CutGaps(std::int64_t length) noexcept;
};

/// Makes an empty table of `head` with room for this many entries.
/// Errors   throws bad_alloc.
HeadTable MakeHeadTable(const KvHead& head, std::int64_t pages, std::int64_t gaps);

/// Calls fn(first, last) for the ranges of [begin, end) that are held, in order.
template <class Fn>
void ForEachHeld(const HeadTable& table, std::int64_t begin, std::int64_t end, const Fn& fn) {
  for (const kernels::KvSpan& gap : table.gaps) {
    if (gap.end <= begin) continue;
    if (gap.begin >= end) break;
    if (gap.begin > begin) fn(begin, gap.begin);
    begin = std::min(end, gap.end);
  }
  if (begin < end) fn(begin, end);
}

}  // namespace manyhead
