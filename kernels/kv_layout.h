#pragma once

#include <cstddef>
#include <cstdint>

#include "manyhead/types.h"

/// Describes a page of N tokens, with the keys and values of one head: N / 16 tiles of keys, then N
/// / 16 tiles of values, a tile holding 16 tokens. Pages, V and the tiles of int8 and int4 start on
/// multiples of 64 bytes; tiles of the other types are adjacent.
///
///   K tile   f32, f16, bf16  [D][16], token innermost. A dot product with 16 keys is then D
///                            broadcast-FMAs on whole vectors, without a horizontal sum, and a pass
///                            over the keys of a head streams memory in order.
///            int8            [D][16] int8, then, from k_scale_bytes on, [16] f32 scales:
///                            key = scale[t] * x.
///            int4            [D/2][16] bytes, element 2i low and 2i + 1 high (D odd: the last high
///                            nibble is unused), then, from k_scale_bytes on, for each group of 32
///                            elements [16] f16 scales and [16] f16 minima:
///                            key = scale[t] * x + min[t], x in 0..15.
///   V tile   f32, f16, bf16  [16][Dp], Dp = Dv rounded up to 16: probs * V is the same shape over
///                            Dv.
///            int8            [16][Dp] int8, then, from v_scale_bytes on, [16] f32 scales.
///            int4            [16][Dg/2] bytes, Dg = Dv rounded up to 32: byte i of a group of 32
///                            elements (16 bytes) holds elements i low and i + 16 high; then, from
///                            v_scale_bytes on, [16][Dg/32] pairs of f16, scale and minimum.
///
/// Scales of int8 belong to a token, so they multiply logits and probabilities, never elements.
/// Slots of tokens that are not stored yet, and lanes Dv..Dp of V, hold anything (NaN included):
/// kernels must select, never multiply by zero, and must not store those lanes.

namespace manyhead::kernels {

inline constexpr std::int64_t kKvTile = 16;   ///< tokens of a tile
inline constexpr std::int64_t kKvGroup = 32;  ///< elements that share an int4 scale

struct KvPageLayout {
  KvType k_type = KvType::kF32;
  KvType v_type = KvType::kF32;
  std::int64_t head_dim = 0;        ///< D
  std::int64_t head_dim_v = 0;      ///< Dv
  std::int64_t v_row = 0;           ///< Dp
  std::int64_t page_size = 0;       ///< N, a multiple of kKvTile
  std::int64_t k_tile_bytes = 0;    ///< from one K tile to the next
  std::int64_t v_tile_bytes = 0;    ///< from one V tile to the next
  std::int64_t k_scale_bytes = 0;   ///< offset of a K tile's scales from the tile's base
  std::int64_t v_scale_bytes = 0;   ///< offset of a V tile's scales from the tile's base
  std::int64_t v_offset_bytes = 0;  ///< offset of V from the page's base
  std::int64_t page_bytes = 0;      ///< a multiple of 64
};

/// The token positions [begin, end).
struct KvSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

inline constexpr std::int64_t kSeesAll = INT64_MAX;

/// The tokens [0, length) of one (sequence, layer, KV head): token s lies in pages[s / page_size],
/// unless it is in a gap. A query at position i sees those with s < sink or s > i - recent.
struct KvHeadView {
  const KvPageLayout* layout = nullptr;
  std::byte* const* pages = nullptr;  ///< null where the whole page lies in a gap
  std::int64_t length = 0;
  const KvSpan* gaps = nullptr;  ///< tokens that are not stored: ascending, not adjacent
  std::int64_t num_gaps = 0;
  std::int64_t sink = 0;
  std::int64_t recent = kSeesAll;
  /// [pages] or null: attention adds the probabilities of each page's keys here, times
  /// kKvScoreUnit.
  std::int64_t* scores = nullptr;
};

/// Scores are whole numbers, so that their sum does not depend on the order in which threads add.
inline constexpr float kKvScoreUnit = 1 << 24;

}  // namespace manyhead::kernels
