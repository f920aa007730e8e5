#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/table.h"
#include "runtime/platform/math.h"

namespace manyhead {

/// One KV head of one layer, for all sequences.
struct KvHead {
  kernels::KvPageLayout layout;
  KvHeadParams params;
  std::size_t arena = 0;  ///< of pages of its size
  /// A query at position i sees tokens below `sink` and those above i - recent.
  std::int64_t sink = 0;
  std::int64_t recent = kernels::kSeesAll;

  bool off() const noexcept { return params.policy.kind == KvPolicyKind::kOff; }
  bool scored() const noexcept { return params.policy.kind == KvPolicyKind::kBudget; }
  std::int64_t PagesFor(std::int64_t tokens) const noexcept {
    return off() ? 0 : CeilDiv(tokens, layout.page_size);
  }
  /// Page pointers a table of so many pages has room for. Short sequences never grow their tables.
  std::int64_t RoomForPages(std::int64_t pages) const noexcept {
    constexpr std::int64_t kFirstPages = 64;
    return off() ? 0 : RoomFor(std::max<std::int64_t>(1, pages), kFirstPages);
  }
  static std::int64_t RoomForHoles(std::int64_t holes) noexcept {
    constexpr std::int64_t kFirstHoles = 4;
    return RoomFor(holes, kFirstHoles);
  }
  /// Bytes of a new table for so many entries.
  std::int64_t NewTableBytes(std::int64_t pages, std::int64_t holes) const noexcept {
    return TableBytes(RoomForPages(pages), RoomForHoles(holes));
  }
  /// Bytes of a table with such room.
  std::int64_t TableBytes(std::int64_t pages, std::int64_t holes) const noexcept {
    return pages * static_cast<std::int64_t>(sizeof(std::byte*)) +
           (scored() ? pages * static_cast<std::int64_t>(sizeof(std::int64_t)) : 0) +
           holes * static_cast<std::int64_t>(sizeof(kernels::KvSpan));
  }
};

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

/// Full pages, [first, last), that no query from position `length` on sees by the head's window;
/// those before `first` were evicted before, or hold sink tokens.
struct PageRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PageRange OutOfWindow(const KvHead& head, const HeadTable& table, std::int64_t length) noexcept;

/// Marks the pages that a budget does not keep between steps, at `length`, by the complement of
/// their scores; returns how many.
std::int64_t MarkOverBudget(const KvHead& head, HeadTable& table, std::int64_t length) noexcept;
/// Takes all marks away.
void Unmark(HeadTable& table) noexcept;

/// The greatest length up to `wanted` at which a head that now has `length` tokens is as if it had
/// never had more.
std::int64_t ExactLengthOf(const KvHead& head, const HeadTable& table, std::int64_t length,
                           std::int64_t wanted) noexcept;

}  // namespace manyhead
