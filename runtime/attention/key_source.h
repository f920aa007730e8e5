#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/kv_layout.h"
#include "runtime/attention/scratch.h"
#include "runtime/attention/setup.h"
#include "runtime/attention/step_requests.h"
#include "runtime/attention/tile_rows.h"

namespace manyhead {

/// Provides blocks of the keys and values of one head of one request in the kernels' form.
class AttentionKeySource {
 public:
  /// Creates a source for `rows` rows that share the keys; for a cache, `view` describes them.
  AttentionKeySource(const AttentionSetup& setup, const AttentionStepRequests& requests,
                     const AttentionRequest& request, std::int64_t head, std::int64_t rows,
                     const AttentionThreadScratch& scratch,
                     const kernels::KvHeadView& view) noexcept;

  /// Returns the first keys at or after position `from` that any of `rows` sees, that are stored
  /// and that lie in one block, with all missing keys between them; empty, and at or after
  /// rows.end(), when there are none.
  KeySpan From(const AttentionTileRows& rows, std::int64_t from) const noexcept {
    return view_.num_gaps == 0 ? rows.BlockFrom(from) : StoredFrom(rows, from);
  }
  /// Returns the keys `span`, which lie in one block; those of `next` will be loaded after it.
  kernels::AttentionBlock Load(KeySpan span, KeySpan next) const noexcept;
  /// Returns the block without the values.
  kernels::AttentionBlock LoadKeys(KeySpan span) const noexcept;

  bool has_scores() const noexcept { return view_.scores != nullptr; }
  /// Adds the probabilities of the keys `span`, rows of kAttentionBlock, to its pages' scores.
  void AddScores(KeySpan span, const float* probs, std::int64_t rows) const noexcept;

 private:
  KeySpan StoredFrom(const AttentionTileRows& rows, std::int64_t from) const noexcept;
  /// Returns the first gap that ends after `position`.
  const kernels::KvSpan* GapAfter(std::int64_t position) const noexcept;
  /// Returns AttentionBlock::missing for a block with begin and end.
  std::uint64_t MissingIn(const kernels::AttentionBlock& block) const noexcept;
  bool HasTile(std::int64_t position) const noexcept {
    return view_.pages[position / view_.layout->page_size] != nullptr;
  }
  /// Return the tiles of position `position`, a multiple of kKvTile.
  const std::byte* KeyTile(std::int64_t position) const noexcept;
  const std::byte* ValueTile(std::int64_t position) const noexcept;
  static kernels::AttentionBlock MakeBlock(KeySpan span) noexcept;
  void LoadPages(kernels::AttentionBlock& block) const noexcept;
  void WidenKeys(kernels::AttentionBlock& block) const noexcept;
  void WidenPages(kernels::AttentionBlock& block) const noexcept;
  void PackKeys(kernels::AttentionBlock& block) const noexcept;
  void PackValues(kernels::AttentionBlock& block) const noexcept;

  const AttentionSetup& setup_;
  const AttentionTensors* tensors_;  ///< null: pages of a cache
  const AttentionThreadScratch& scratch_;
  bool widens_;  ///< widens once per block into scratch, not in the products' registers
  const kernels::KvHeadView& view_;
  const std::byte* k_ = nullptr;  ///< position 0 of the head in plain tensors
  const std::byte* v_ = nullptr;
};

}  // namespace manyhead
