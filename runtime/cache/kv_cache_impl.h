#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/cache_heads.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/prefix_store.h"
#include "runtime/cache/sequence_store.h"
#include "runtime/cache/token_rows.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// The cache without checks of arguments: the caller must pass valid ids, layers, heads and
/// positions. It joins the parts of this room, each with a header of its own:
///
///   cache_heads.h     the heads of all layers: shape, types, policy, page layout
///   page_store.h      pages of heads under one cap, and the account of all bytes
///   sequence_store.h  creates, frees and forks sequences; sequence_slots.h assigns their ids
///   sequence_edits.h  changes a sequence's tokens: reserve, truncate, drop, copy, unshare
///   eviction.h        decisions of policies; head_table.h the tokens of one head and sequence
///   token_rows.h      rows of keys and values in pages
///   prefix_store.h    cached prefixes
///   snapshot_save.h   writes sequences to a file, and snapshot_restore.h reads them
///   cache_usage.h     bytes, pages and tokens in use
struct KvCache::Impl {
 public:
  /// Creates a cache; `params` must be resolved and in range.
  static Result<std::unique_ptr<Impl>> Create(KvCacheParams params);

  const KvCacheParams& params() const noexcept { return heads.params(); }
  const KvHead& Head(std::int64_t layer, std::int64_t head) const noexcept {
    return heads[heads.IndexOf(layer, head)];
  }

  /// Returns false for an id that was never assigned or was freed.
  bool Has(SequenceId id) const noexcept {
    const KvSequence* sequence = sequences.Find(id);
    return sequence != nullptr && !sequence->stored;
  }
  /// Returns the sequence of an id for which Has is true.
  KvSequence& At(SequenceId id) noexcept { return *sequences.Find(id); }
  const KvSequence& At(SequenceId id) const noexcept { return *sequences.Find(id); }
  std::int64_t Length(SequenceId id) const noexcept { return At(id).length; }
  /// Returns the first position whose query still finds all tokens that its heads' policies let it
  /// see.
  std::int64_t FirstQuery(SequenceId id) const noexcept { return At(id).first_query; }

  /// Returns the stored tokens of one head. Valid until the sequence changes.
  kernels::KvHeadView HeadView(SequenceId id, std::int64_t layer,
                               std::int64_t head) const noexcept {
    return HeadViewOf(heads, At(id), layer, head);
  }
  bool Holds(SequenceId id, std::int64_t layer, std::int64_t head,
             std::int64_t position) const noexcept {
    return HoldsToken(heads, At(id), layer, head, position);
  }

  /// Stores tokens of several sequences in one layer; they must be reserved and in pages that
  /// belong to one sequence alone: their rows of k [rows, K, D] and v [rows, K, Dv], token strides
  /// in elements. Every thread of a parallel region calls it with the same arguments; it ends with
  /// a barrier.
  void WriteOn(Worker& worker, std::int64_t layer, std::span<const KvRows> tokens, const float* k,
               const float* v, std::int64_t k_stride, std::int64_t v_stride) noexcept {
    TokenWriter(pages, sequences.slots(), *kernels)
        .WriteOn(worker, tokens, {layer, k, v, k_stride, v_stride});
  }
  /// Reads a token that is held.
  void ReadRow(SequenceId id, std::int64_t layer, std::int64_t head, std::int64_t position,
               float* k, float* v) const noexcept;

  /// Sets the head's policy to `off`: the tokens that sequences hold of it are dropped at once,
  /// later ones are not stored.
  void TurnOff(std::int64_t layer, std::int64_t head) noexcept;

  CacheHeads heads;
  const kernels::KvKernels* kernels;
  PageStore pages;
  SequenceStore sequences;
  PrefixStore prefixes;

 private:
  Impl(CacheHeads all_heads, PagePool pool);
};

}  // namespace manyhead
