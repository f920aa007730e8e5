#include "runtime/cache/head_table.h"

#include <algorithm>

namespace manyhead {
namespace {

using kernels::KvSpan;

/// Returns the first gap that ends after `position`.
std::int64_t FirstHoleAfter(const Table<KvSpan>& holes, std::int64_t position) noexcept {
  return std::upper_bound(holes.begin(), holes.end(), position,
                          [](std::int64_t s, const KvSpan& hole) { return s < hole.end; }) -
         holes.begin();
}

}  // namespace

std::int64_t HeadTable::HeldIn(std::int64_t begin, std::int64_t end) const noexcept {
  std::int64_t held = end - begin;
  for (std::int64_t i = FirstHoleAfter(holes, begin); i < holes.size() && holes[i].begin < end; ++i)
    held -= std::min(end, holes[i].end) - std::max(begin, holes[i].begin);
  return held;
}

const KvSpan* HeadTable::HoleAt(std::int64_t position) const noexcept {
  const std::int64_t i = FirstHoleAfter(holes, position);
  return i < holes.size() && holes[i].begin <= position ? holes.data() + i : nullptr;
}

void HeadTable::AddHole(std::int64_t begin, std::int64_t end) noexcept {
  if (begin >= end) return;
  // A gap that ends at `begin` is joined.
  const std::int64_t first = FirstHoleAfter(holes, begin - 1);
  std::int64_t last = first;
  KvSpan joined{begin, end};
  for (; last < holes.size() && holes[last].begin <= end; ++last) {
    joined.begin = std::min(joined.begin, holes[last].begin);
    joined.end = std::max(joined.end, holes[last].end);
  }
  holes.Replace(first, last, &joined);
}

void HeadTable::CutHoles(std::int64_t length) noexcept {
  while (holes.size() > 0 && holes.back().begin >= length) holes.Pop();
  if (holes.size() > 0) holes.back().end = std::min(holes.back().end, length);
}

HeadTable MakeHeadTable(const KvHead& head, std::int64_t pages, std::int64_t holes) {
  HeadTable table;
  const std::int64_t room = head.RoomForPages(pages);
  table.pages = Table<std::byte*>(room);
  if (head.scored()) table.scores = Table<std::int64_t>(room);
  table.holes = Table<kernels::KvSpan>(KvHead::RoomForHoles(holes));
  return table;
}

}  // namespace manyhead
