#pragma once

#include <cstdint>

#include "runtime/cache/head_table.h"
#include "runtime/cache/kv_head.h"

/// Decides, by the policies, which tokens of one head and sequence may be evicted, and to which
/// length the sequence can be truncated as if it had never been longer. These functions release no
/// page.

namespace manyhead {

/// Full pages, [first, last), that no query from position `length` less the policy's margin on sees
/// by the head's window; pages before `first` have been evicted, or hold sink tokens.
struct PageRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PageRange OutOfWindow(const KvHead& head, const HeadTable& table, std::int64_t length) noexcept;

/// Marks the pages that a budget does not keep between steps, at `length`, by the complement of
/// their scores; returns how many.
std::int64_t MarkOverBudget(const KvHead& head, HeadTable& table, std::int64_t length) noexcept;
/// Returns whether page `page` of a head with scores is marked.
inline bool IsMarked(const HeadTable& table, std::int64_t page) noexcept {
  return table.scores[page] < 0;
}
/// Removes all marks.
void Unmark(HeadTable& table) noexcept;

/// Returns the greatest length up to `wanted` at which a head that now has `length` tokens is as if
/// it had never had more.
std::int64_t ExactLengthOf(const KvHead& head, const HeadTable& table, std::int64_t length,
                           std::int64_t wanted) noexcept;

}  // namespace manyhead
