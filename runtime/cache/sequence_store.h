#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_sequence.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/sequence_slots.h"

namespace manyhead {

/// How sequences come, go and share pages.
class SequenceStore {
 public:
  /// `pages` outlives it.
  explicit SequenceStore(PageStore& pages) noexcept : pages_(pages) {}

  const KvSequence* Find(SequenceId id) const noexcept { return slots_.Find(id); }
  KvSequence* Find(SequenceId id) noexcept { return slots_.Find(id); }
  SequenceSlots& slots() noexcept { return slots_; }
  const SequenceSlots& slots() const noexcept { return slots_; }

  /// Makes an empty sequence.
  Result<SequenceId> Create() { return Make("KvCache::CreateSequence", nullptr); }
  /// Makes a sequence that holds what another does, in the same pages.
  Result<SequenceId> Fork(SequenceId id);
  /// Gives back all that a sequence holds; its id is invalid from then on.
  void Free(SequenceId id) noexcept;

  /// Gives back what all sequences hold of a head, which is about to be turned off.
  void EmptyHead(std::size_t head) noexcept;

 private:
  /// Makes a sequence with room for what `like` holds, which may be null.
  Result<SequenceId> Make(const char* function, const KvSequence* like);

  PageStore& pages_;
  SequenceSlots slots_;
};

}  // namespace manyhead
