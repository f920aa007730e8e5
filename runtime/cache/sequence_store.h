#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_sequence.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/sequence_slots.h"

namespace manyhead {

/// Creates, frees and forks sequences.
class SequenceStore {
 public:
  /// Creates the store; `pages` must outlive it.
  explicit SequenceStore(PageStore& pages) noexcept : pages_(pages) {}

  const KvSequence* Find(SequenceId id) const noexcept { return slots_.Find(id); }
  KvSequence* Find(SequenceId id) noexcept { return slots_.Find(id); }
  SequenceSlots& slots() noexcept { return slots_; }
  const SequenceSlots& slots() const noexcept { return slots_; }

  /// Makes an empty sequence.
  Result<SequenceId> Create() { return Make("KvCache::CreateSequence", nullptr); }
  /// Makes a sequence with the same tokens as another, in the same pages.
  Result<SequenceId> Fork(SequenceId id);
  /// Releases all pages of a sequence; its id is invalid afterwards.
  void Free(SequenceId id) noexcept;

  /// Releases the pages that all sequences hold of a head, which is then turned off.
  void EmptyHead(std::size_t head) noexcept;

 private:
  /// Makes a sequence with room for the tokens of `like`, which may be null.
  Result<SequenceId> Make(const char* function, const KvSequence* like);

  PageStore& pages_;
  SequenceSlots slots_;
};

}  // namespace manyhead
