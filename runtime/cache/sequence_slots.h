#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_sequence.h"

namespace manyhead {

/// The slots of a cache's sequences, and the ids by which callers name them.
class SequenceSlots {
 private:
  struct Slot {
    std::uint32_t generation = 0;
    KvSequence sequence;
  };

 public:
  /// Room for further sequences.
  struct Room {
    std::vector<Slot> slots;  ///< no capacity: unchanged
    std::vector<std::uint32_t> free_slots;
  };

  /// Returns the bytes of a list of `sequences` sequences.
  static std::int64_t Bytes(std::int64_t sequences) noexcept;

  /// Returns the bytes of this list.
  std::int64_t bytes() const noexcept {
    return Bytes(static_cast<std::int64_t>(slots_.capacity()));
  }

  /// Returns the sequence of an id; null for one that was never assigned or was freed.
  const KvSequence* Find(SequenceId id) const noexcept;
  KvSequence* Find(SequenceId id) noexcept;
  /// Returns the ids in use, except those of stored prefixes.
  std::vector<SequenceId> Ids() const;
  /// Calls fn(sequence) for every sequence.
  template <class Fn>
  void ForEach(const Fn& fn) noexcept {
    for (Slot& slot : slots_)
      if (slot.sequence.heads != nullptr) fn(slot.sequence);
  }

  /// Returns how many bytes the list grows by for `count` further sequences.
  /// Errors   kUnsupported beyond the largest number of sequences; `function` begins the message.
  Result<std::int64_t> GrowthFor(std::int64_t count, const char* function) const;
  /// Allocates room for `count` further sequences, if there is none.
  /// Errors   throws bad_alloc.
  Room MakeRoom(std::int64_t count) const;
  void PutRoom(Room room) noexcept;

  /// Adds a sequence, for which there must be room, and returns its id.
  SequenceId Put(KvSequence sequence) noexcept;
  /// Removes a sequence, which must hold no pages any more; its id becomes invalid.
  void Remove(SequenceId id) noexcept;

 private:
  bool NeedsRoom(std::int64_t count) const noexcept;
  /// Returns the number of slots, used or not, after `count` further sequences.
  std::int64_t SlotsWith(std::int64_t count) const noexcept;
  SequenceId IdOf(std::uint32_t slot) const noexcept;

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
};

}  // namespace manyhead
