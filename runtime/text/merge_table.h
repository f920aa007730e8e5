#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/types.h"

namespace manyhead {

/// The token that two tokens merge to, and the rank of the merge.
struct MergeRule {
  std::int32_t rank = 0;  ///< lower first
  TokenId result = 0;
};

/// Maps pairs of ids to merge rules: a hash table with open addressing, filled once.
class MergeTable {
 public:
  /// Allocates room for `count` rules.
  explicit MergeTable(std::size_t count);
  /// Adds a rule; of two rules for one pair the first is kept. At most `count` calls are allowed.
  void Insert(TokenId left, TokenId right, MergeRule rule);
  /// Returns null if these two do not merge.
  const MergeRule* Find(TokenId left, TokenId right) const noexcept;
  std::int64_t memory_bytes() const noexcept {
    return static_cast<std::int64_t>(slots_.capacity() * sizeof(Slot));
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    MergeRule rule;
  };
  std::size_t SlotOf(std::uint64_t key) const noexcept;
  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
  int shift_ = 64;
};

}  // namespace manyhead
