#pragma once

#include <cstdint>

#include "runtime/cache/head_table.h"
#include "runtime/memory/checked.h"

namespace manyhead {

/// Counts the keys that the queries of one KV head see under its policy, its layer's window and the
/// causal mask.
///
/// Exact for every policy but one: which keys a head with a budget keeps depends on their scores,
/// so where its layer has a window too, all that it keeps count as inside the window.
class KeysSeen {
 public:
  /// `window` is the layer's, 0 = none; tokens are appended in steps of up to `step`, before each
  /// of which the head evicts.
  KeysSeen(const KvHead& head, std::int64_t window, std::int64_t step) noexcept
      : head_(head), window_(window), step_(step) {}

  /// The keys of the last of `tokens` tokens (at least 1), evaluated in a step of its own.
  std::int64_t OfLast(std::int64_t tokens) const noexcept;
  /// The pairs of a query and a key, over all queries of `tokens` tokens.
  std::int64_t Pairs(std::int64_t tokens, CheckedMath& math) const noexcept;

 private:
  std::int64_t BudgetPairs(std::int64_t tokens, CheckedMath& math) const noexcept;
  std::int64_t StepPairs(std::int64_t length, std::int64_t count, CheckedMath& math) const noexcept;
  /// The layer's window among `tokens` tokens.
  std::int64_t WindowOf(std::int64_t tokens) const noexcept {
    return window_ == 0 ? tokens : window_;
  }

  const KvHead& head_;
  std::int64_t window_, step_;
};

}  // namespace manyhead
