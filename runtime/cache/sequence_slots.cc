#include "runtime/cache/sequence_slots.h"

#include <algorithm>
#include <utility>

#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

// An id consists of a slot and the number of its earlier uses, so that a freed id stays invalid. A
// slot whose generations are used up is not used again.
constexpr int kSlotBits = 20;
constexpr std::uint32_t kMaxSlots = 1U << kSlotBits;
constexpr std::uint32_t kMaxGeneration = (1U << (31 - kSlotBits)) - 1;
constexpr std::int64_t kFirstSlots = 8;

}  // namespace

std::int64_t SequenceSlots::Bytes(std::int64_t sequences) noexcept {
  // A freed slot's number needs a place too. There are never more slots than kMaxSlots.
  return RoomFor(std::min<std::int64_t>(sequences, kMaxSlots), kFirstSlots) *
         static_cast<std::int64_t>(sizeof(Slot) + sizeof(std::uint32_t));
}

const KvSequence* SequenceSlots::Find(SequenceId id) const noexcept {
  if (static_cast<std::int32_t>(id) < 0) return nullptr;
  const std::uint32_t bits = static_cast<std::uint32_t>(id), slot = bits & (kMaxSlots - 1);
  if (slot >= slots_.size() || slots_[slot].generation != bits >> kSlotBits) return nullptr;
  return slots_[slot].sequence.heads == nullptr ? nullptr : &slots_[slot].sequence;
}

KvSequence* SequenceSlots::Find(SequenceId id) noexcept {
  return const_cast<KvSequence*>(std::as_const(*this).Find(id));
}

std::vector<SequenceId> SequenceSlots::Ids() const {
  std::vector<SequenceId> ids;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (const KvSequence* sequence = Find(IdOf(slot)); sequence != nullptr && !sequence->stored)
      ids.push_back(IdOf(slot));
  return ids;
}

bool SequenceSlots::NeedsRoom(std::int64_t count) const noexcept {
  const auto unused = static_cast<std::int64_t>(slots_.capacity() - slots_.size());
  return count > unused + static_cast<std::int64_t>(free_slots_.size());
}

std::int64_t SequenceSlots::SlotsWith(std::int64_t count) const noexcept {
  const auto reused = std::min(count, static_cast<std::int64_t>(free_slots_.size()));
  return static_cast<std::int64_t>(slots_.size()) + count - reused;
}

Result<std::int64_t> SequenceSlots::GrowthFor(std::int64_t count, const char* function) const {
  if (SlotsWith(count) > kMaxSlots)
    return Unsupported(function, slots_.size(), " + ", count, " sequences; at most ", kMaxSlots);
  if (!NeedsRoom(count)) return 0;
  return Bytes(SlotsWith(count)) - bytes();
}

SequenceSlots::Room SequenceSlots::MakeRoom(std::int64_t count) const {
  Room room;
  if (!NeedsRoom(count)) return room;
  const auto grown = static_cast<std::size_t>(RoomFor(SlotsWith(count), kFirstSlots));
  room.free_slots.reserve(grown);  // Remove must not fail
  room.slots.reserve(grown);
  return room;
}

void SequenceSlots::PutRoom(Room room) noexcept {
  if (room.slots.capacity() == 0) return;
  for (Slot& slot : slots_) room.slots.push_back(std::move(slot));
  for (const std::uint32_t slot : free_slots_) room.free_slots.push_back(slot);
  slots_.swap(room.slots);
  free_slots_.swap(room.free_slots);
}

SequenceId SequenceSlots::IdOf(std::uint32_t slot) const noexcept {
  return static_cast<SequenceId>(slots_[slot].generation << kSlotBits | slot);
}

SequenceId SequenceSlots::Put(KvSequence sequence) noexcept {
  if (free_slots_.empty()) {
    slots_.push_back({0, std::move(sequence)});
    return IdOf(static_cast<std::uint32_t>(slots_.size() - 1));
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].sequence = std::move(sequence);
  return IdOf(slot);
}

void SequenceSlots::Remove(SequenceId id) noexcept {
  const std::uint32_t slot = static_cast<std::uint32_t>(id) & (kMaxSlots - 1);
  slots_[slot].sequence = KvSequence();
  if (slots_[slot].generation == kMaxGeneration) return;
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
}

}  // namespace manyhead
