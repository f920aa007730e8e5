#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/page_pool.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// The cache without its checks of arguments: ids, layers, heads and positions are the caller's
/// duty here, except where a function says otherwise.
struct KvCache::Impl {
 public:
  /// `params` are resolved and in range.
  static Result<std::unique_ptr<Impl>> Create(KvCacheParams params);

  const KvCacheParams& params() const noexcept { return params_; }
  std::int64_t page_row_bytes() const noexcept { return page_row_bytes_; }

  /// False for an id that was never given out or was freed.
  bool Has(SequenceId id) const noexcept { return Find(id) != nullptr; }
  std::int64_t Length(SequenceId id) const noexcept { return Find(id)->length; }
  const kernels::KvPageLayout& Layout(std::int64_t layer) const noexcept {
    return layers_[layer].layout;
  }

  /// The stored tokens of one head. Valid until the sequence grows, shrinks or is freed.
  kernels::KvHeadView HeadView(SequenceId id, std::int64_t layer, std::int64_t head) const noexcept;

  /// Stores rows [position, position + count), already reserved, of one layer: k [count, K, D],
  /// v [count, K, Dv], token strides in elements. Every thread of a parallel region calls it with
  /// the same arguments; ends with a barrier.
  void WriteOn(Worker& worker, SequenceId id, std::int64_t layer, std::int64_t position,
               std::int64_t count, const float* k, const float* v, std::int64_t k_stride,
               std::int64_t v_stride) noexcept;
  void ReadRow(SequenceId id, std::int64_t layer, std::int64_t head, std::int64_t position,
               float* k, float* v) const noexcept;

  Result<SequenceId> CreateSequence();
  void FreeSequence(SequenceId id) noexcept;
  /// count >= 0.
  Status Reserve(SequenceId id, std::int64_t count);
  /// 0 <= length <= Length(id).
  void Truncate(SequenceId id, std::int64_t length) noexcept;

  KvUsage Usage() const;
  KvUsage Usage(SequenceId id) const;

 private:
  struct Layer {
    kernels::KvPageLayout layout;
    std::int64_t num_kv_heads = 0;
    std::size_t first_head = 0;  ///< index of its head 0 among the heads of all layers
    std::size_t arena = 0;       ///< of pages of its size
  };
  /// What one KV head of one layer holds of a sequence.
  struct HeadTable {
    std::vector<std::byte*> pages;
  };
  struct Sequence {
    std::int64_t length = 0;
    std::vector<HeadTable> heads;  ///< of all layers, in order; empty = the slot is unused
  };
  struct Slot {
    std::uint32_t generation = 0;
    Sequence sequence;
  };

  Impl(KvCacheParams params, PagePool pool) noexcept;
  const Sequence* Find(SequenceId id) const noexcept;
  Sequence* Find(SequenceId id) noexcept;
  std::int64_t PagesFor(std::int64_t tokens) const noexcept {
    return tokens / params_.page_size + (tokens % params_.page_size != 0);
  }
  Status CheckRoom(const Sequence& sequence, std::int64_t count) const;
  void ShrinkTo(Sequence& sequence, std::int64_t pages) noexcept;
  /// Calls fn(layer, its index, head, head table).
  template <class S, class Fn>
  void ForEachHead(S& sequence, Fn&& fn) const;

  KvCacheParams params_;
  const kernels::KvKernels* kernels_;
  PagePool pool_;
  std::int64_t page_row_bytes_ = 0;  ///< of one page of every layer and head
  std::vector<Layer> layers_;
  std::vector<std::size_t> arena_heads_;  ///< heads whose pages an arena holds
  std::vector<std::int64_t> head_pages_;  ///< pages of all sequences, by head as in Sequence
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
};

struct SequenceCache {
  KvCache cache;
  SequenceId sequence;
};

/// A cache with room for one sequence of params.max_tokens, and that sequence; capacity_bytes of
/// `params` is ignored.
Result<SequenceCache> CreateSequenceCache(KvCacheParams params);

}  // namespace manyhead
