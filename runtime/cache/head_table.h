#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "runtime/cache/kv_head.h"
#include "runtime/cache/table.h"

namespace manyhead {

/// What a KV head holds of one sequence: token s lies in pages[s / page_size], unless it is in a
/// hole. A page all of whose tokens are in holes is null.
struct HeadTable {
  Table<std::byte*> pages;
  Table<std::int64_t> scores;    ///< of each page, where the head is scored
  Table<kernels::KvSpan> holes;  ///< ascending, not touching
  bool marked = false;           ///< some scores are, see MarkOverBudget

  std::int64_t bytes() const noexcept { return pages.bytes() + scores.bytes() + holes.bytes(); }

  /// Tokens of [begin, end) that are held.
  std::int64_t HeldIn(std::int64_t begin, std::int64_t end) const noexcept;
  /// The hole that holds `position`; null if none does.
  const kernels::KvSpan* HoleAt(std::int64_t position) const noexcept;
  /// Joins [begin, end) to the holes, of which there may be one more afterwards.
  void AddHole(std::int64_t begin, std::int64_t end) noexcept;
  /// Forgets holes from position `length` on.
  void CutHoles(std::int64_t length) noexcept;
};

/// An empty table of `head` with room for so many entries.
/// Errors   throws bad_alloc.
HeadTable MakeHeadTable(const KvHead& head, std::int64_t pages, std::int64_t holes);

/// Calls fn(first, last) for the ranges of [begin, end) that are held, in order.
template <class Fn>
void ForEachHeld(const HeadTable& table, std::int64_t begin, std::int64_t end, const Fn& fn) {
  for (const kernels::KvSpan& hole : table.holes) {
    if (hole.end <= begin) continue;
    if (hole.begin >= end) break;
    if (hole.begin > begin) fn(begin, hole.begin);
    begin = std::min(end, hole.end);
  }
  if (begin < end) fn(begin, end);
}

}  // namespace manyhead
