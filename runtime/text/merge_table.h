#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/types.h"

namespace manyhead {

/// What joining two tokens gives and how early it is done.
struct MergeRule {
  std::int32_t rank = 0;  ///< lower first
  TokenId result = 0;
};

/// Merge rules by pair of ids: a hash table with open addressing, filled once.
class MergeTable {
 public:
  /// Room for `count` rules.
  explicit MergeTable(std::size_t count);
  /// Keeps the first of two rules for one pair. At most as many calls as there is room.
  void Insert(TokenId left, TokenId right, MergeRule rule);
  /// Null if these two do not merge.
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
  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_ = 64;
};

}  // namespace manyhead
