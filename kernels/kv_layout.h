#pragma once

#include <cstddef>
#include <cstdint>

#include "manyhead/types.h"

/// How the keys and values of one head lie in a page of N tokens.
///
///   K  [N/16][D][16]  of k_type: tiles of 16 tokens, token innermost. A dot product with 16 keys
///   is then
///                     D broadcast-FMAs on whole vectors, without a horizontal sum, and a pass over
///                     the keys of a head streams memory in order.
///   V  [N][Dp]        of v_type, Dp = Dv rounded up to 16: probs * V is the same shape over Dv.
///
/// K starts at the page's base, V at KvPageLayout::v_offset_bytes; both 64-byte aligned. Rows of
/// tokens that are not stored yet, and lanes Dv..Dp of V, hold anything (NaN included): kernels
/// must select, never multiply by zero, and must not store those lanes.

namespace manyhead::kernels {

inline constexpr std::int64_t kKvTile = 16;  ///< tokens of a K tile

struct KvPageLayout {
  KvType k_type = KvType::kF32;
  KvType v_type = KvType::kF32;
  std::int64_t head_dim = 0;        ///< D
  std::int64_t head_dim_v = 0;      ///< Dv
  std::int64_t v_row = 0;           ///< Dp, elements from one V row to the next
  std::int64_t page_size = 0;       ///< N, a multiple of kKvTile
  std::int64_t v_offset_bytes = 0;  ///< of V from the page's base
  std::int64_t page_bytes = 0;      ///< a multiple of 64
};

/// The stored tokens [0, length) of one (sequence, layer, KV head): token s lies in pages[s /
/// page_size].
struct KvHeadView {
  const KvPageLayout* layout = nullptr;
  std::byte* const* pages = nullptr;
  std::int64_t length = 0;
};

}  // namespace manyhead::kernels
