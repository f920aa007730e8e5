#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/cache_heads.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/sequence_slots.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Tokens [position, position + count) of a sequence, of which the first is row `row` of a matrix.
struct KvRows {
  SequenceId sequence{};
  std::int64_t position = 0;
  std::int64_t count = 0;
  std::int64_t row = 0;
};

/// Returns the stored tokens of one head of a sequence. Valid until the sequence changes.
kernels::KvHeadView HeadViewOf(const CacheHeads& heads, const KvSequence& sequence,
                               std::int64_t layer, std::int64_t head) noexcept;

/// Returns true where a head holds the token at `position`.
bool HoldsToken(const CacheHeads& heads, const KvSequence& sequence, std::int64_t layer,
                std::int64_t head, std::int64_t position) noexcept;

/// Stores the keys and values of tokens in pages.
class TokenWriter {
 public:
  /// Rows k [rows, K, D] and v [rows, K, Dv] of one layer, token strides in elements.
  struct Rows {
    std::int64_t layer = 0;
    const float* k = nullptr;
    const float* v = nullptr;
    std::int64_t k_stride = 0;
    std::int64_t v_stride = 0;
  };

  /// All arguments must outlive it.
  TokenWriter(const PageStore& pages, const SequenceSlots& sequences,
              const kernels::KvKernels& kernels) noexcept
      : pages_(pages), sequences_(sequences), kernels_(kernels) {}

  /// Stores tokens of several sequences; they must be reserved and in pages that belong to one
  /// sequence alone. Every thread of a parallel region calls it with the same arguments; it ends
  /// with a barrier.
  void WriteOn(Worker& worker, std::span<const KvRows> tokens, const Rows& rows) const noexcept;

 private:
  /// Stores item `item` of some tokens: the part of one head in one block of page_size tokens.
  void StoreItem(const KvRows& tokens, std::int64_t item, const Rows& rows) const noexcept;

  const PageStore& pages_;
  const SequenceSlots& sequences_;
  const kernels::KvKernels& kernels_;
};

}  // namespace manyhead
