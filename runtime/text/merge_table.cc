#include "runtime/text/merge_table.h"

#include <algorithm>
#include <bit>

namespace manyhead {
namespace {

std::uint64_t KeyOf(TokenId left, TokenId right) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t count) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2 * count, 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

/// Returns the slot that holds `key`, or the free slot where it belongs. The multiplication spreads
/// the ids over the upper bits, which select the slot.
std::size_t MergeTable::SlotOf(std::uint64_t key) const noexcept {
  std::size_t slot = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[slot].key != key && slots_[slot].key != kFree) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void MergeTable::Insert(TokenId left, TokenId right, MergeRule rule) {
  const std::uint64_t key = KeyOf(left, right);
  Slot& slot = slots_[SlotOf(key)];
  if (slot.key == kFree) slot = {key, rule};
}

const MergeRule* MergeTable::Find(TokenId left, TokenId right) const noexcept {
  if (left < 0 || right < 0) return nullptr;
  const std::uint64_t key = KeyOf(left, right);
  const Slot& slot = slots_[SlotOf(key)];
  return slot.key == key ? &slot.rule : nullptr;
}

}  // namespace manyhead
