#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/kv_layout.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/attention/tile_rows.h"

namespace manyhead {

/// Blocks of the keys and values of one head of one request, as the kernels read them.
class AttentionKeySource {
 public:
  /// For `rows` rows that share the keys.
  AttentionKeySource(const AttentionPlan::Impl& plan, const AttentionPlan::Impl::Request& request,
                     std::int64_t layer, std::int64_t head, std::int64_t rows,
                     const AttentionPlan::Impl::Scratch& scratch) noexcept;

  /// The keys `span`, which lie in one block; those of `next` will be asked for after it.
  kernels::AttentionBlock Load(KeySpan span, KeySpan next) const noexcept;
  /// Of plain tensors, without the values.
  kernels::AttentionBlock LoadKeys(KeySpan span) const noexcept;

 private:
  /// The tiles of position `position`, a multiple of kKvTile.
  const std::byte* KeyTile(std::int64_t position) const noexcept;
  const std::byte* ValueTile(std::int64_t position) const noexcept;
  static kernels::AttentionBlock MakeBlock(KeySpan span) noexcept;
  void LoadPages(kernels::AttentionBlock& block) const noexcept;
  void WidenPages(kernels::AttentionBlock& block) const noexcept;
  void PackKeys(kernels::AttentionBlock& block) const noexcept;
  void PackValues(kernels::AttentionBlock& block) const noexcept;

  const AttentionPlan::Impl& plan_;
  const AttentionPlan::Impl::Scratch& scratch_;
  bool widens_;  ///< once per block into scratch, not in the products' registers
  kernels::KvHeadView view_;
  const std::byte* k_ = nullptr;  ///< of plain tensors: position 0 of the head
  const std::byte* v_ = nullptr;
};

}  // namespace manyhead
