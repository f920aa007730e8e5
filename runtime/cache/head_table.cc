#include "runtime/cache/head_table.h"

#include <algorithm>

namespace manyhead {
namespace {

using kernels::KvSpan;

/// Returns the first gap that ends after `position`.
std::int64_t FirstGapAfter(const Table<KvSpan>& gaps, std::int64_t position) noexcept {
  return std::upper_bound(gaps.begin(), gaps.end(), position,
                          [](std::int64_t s, const KvSpan& gap) { return s < gap.end; }) -
         gaps.begin();
}

}  // namespace

std::int64_t HeadTable::HeldIn(std::int64_t begin, std::int64_t end) const noexcept {
  std::int64_t held = end - begin;
  for (std::int64_t i = FirstGapAfter(gaps, begin); i < gaps.size() && gaps[i].begin < end; ++i)
    held -= std::min(end, gaps[i].end) - std::max(begin, gaps[i].begin);
  return held;
}

const KvSpan* HeadTable::GapAt(std::int64_t position) const noexcept {
  const std::int64_t i = FirstGapAfter(gaps, position);
  return i < gaps.size() && gaps[i].begin <= position ? gaps.data() + i : nullptr;
}

void HeadTable::AddGap(std::int64_t begin, std::int64_t end) noexcept {
  if (begin >= end) return;
  // A gap that ends at `begin` is joined.
  const std::int64_t first = FirstGapAfter(gaps, begin - 1);
  std::int64_t last = first;
  KvSpan joined{begin, end};
  for (; last < gaps.size() && gaps[last].begin <= end; ++last) {
    joined.begin = std::min(joined.begin, gaps[last].begin);
    joined.end = std::max(joined.end, gaps[last].end);
  }
  gaps.Replace(first, last, &joined);
}

void HeadTable::CutGaps(std::int64_t length) noexcept {
  while (gaps.size() > 0 && gaps.back().begin >= length) gaps.Pop();
  if (gaps.size() > 0) gaps.back().end = std::min(gaps.back().end, length);
}

HeadTable MakeHeadTable(const KvHead& head, std::int64_t pages, std::int64_t gaps) {
  HeadTable table;
  const std::int64_t room = head.RoomForPages(pages);
  table.pages = Table<std::byte*>(room);
  if (head.scored()) table.scores = Table<std::int64_t>(room);
  table.gaps = Table<kernels::KvSpan>(KvHead::RoomForGaps(gaps));
  return table;
}

}  // namespace manyhead
