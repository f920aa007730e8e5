#include "runtime/cache/page_layout.h"

#include <algorithm>

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

constexpr std::int64_t kAlignBytes = 64;
constexpr std::int64_t kLanePad = 16;  // V rows end on whole vectors of every instruction set

struct TileBytes {
  std::int64_t scales;  ///< start of the scales, after the elements
  std::int64_t tile;
};

/// Returns the bytes of a tile of 16 tokens of `elements` numbers each, `int4_elements` where two
/// share a byte.
TileBytes TileBytesOf(KvType type, std::int64_t elements, std::int64_t int4_elements) noexcept {
  constexpr std::int64_t kF32Bytes = 4, kF16Bytes = 2, kTile = kernels::kKvTile;
  switch (type) {
    case KvType::kF32:
      return {kTile * elements * kF32Bytes, kTile * elements * kF32Bytes};
    case KvType::kF16:
    case KvType::kBf16:
      return {kTile * elements * kF16Bytes, kTile * elements * kF16Bytes};
    case KvType::kInt8: {
      const std::int64_t scales = RoundUp(kTile * elements, kAlignBytes);
      return {scales, scales + kTile * kF32Bytes};
    }
    case KvType::kInt4: {
      const std::int64_t scales = RoundUp(kTile * int4_elements / 2, kAlignBytes);
      const std::int64_t groups = CeilDiv(elements, kernels::kKvGroup);
      return {scales, scales + kTile * groups * 2 * kF16Bytes};
    }
  }
  return {};
}

}  // namespace

kernels::KvPageLayout MakeKvPageLayout(const KvLayerShape& shape, KvType k_type, KvType v_type,
                                       std::int64_t page_size) noexcept {
  kernels::KvPageLayout layout;
  layout.k_type = k_type;
  layout.v_type = v_type;
  layout.head_dim = shape.head_dim;
  layout.head_dim_v = shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v;
  layout.v_row = RoundUp(layout.head_dim_v, kLanePad);
  layout.page_size = page_size;
  const std::int64_t tiles = page_size / kernels::kKvTile;
  const TileBytes k = TileBytesOf(k_type, layout.head_dim, RoundUp(layout.head_dim, 2));
  const TileBytes v =
      TileBytesOf(v_type, layout.v_row, RoundUp(layout.head_dim_v, kernels::kKvGroup));
  layout.k_tile_bytes = k.tile;
  layout.v_tile_bytes = v.tile;
  layout.k_scale_bytes = k.scales;
  layout.v_scale_bytes = v.scales;
  layout.v_offset_bytes = RoundUp(tiles * k.tile, kAlignBytes);
  layout.page_bytes = layout.v_offset_bytes + RoundUp(tiles * v.tile, kAlignBytes);
  return layout;
}

namespace {

/// Copies lanes [first, last) of `rows` rows of a tile of 16 tokens, `size` bytes each.
void CopyLanes(const std::byte* from, std::byte* to, std::int64_t rows, std::int64_t size,
               std::int64_t first, std::int64_t last) noexcept {
  if (last - first == kernels::kKvTile) {
    std::copy_n(from, rows * kernels::kKvTile * size, to);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = r * kernels::kKvTile * size;
    std::copy(from + row + first * size, from + row + last * size, to + row + first * size);
  }
}

void CopyKeyLanes(const kernels::KvPageLayout& layout, const std::byte* from, std::byte* to,
                  std::int64_t first, std::int64_t last) noexcept {
  const std::int64_t d = layout.head_dim, scales = layout.k_scale_bytes;
  const std::int64_t groups = CeilDiv(d, kernels::kKvGroup);
  switch (layout.k_type) {
    case KvType::kF32:
      return CopyLanes(from, to, d, 4, first, last);
    case KvType::kF16:
    case KvType::kBf16:
      return CopyLanes(from, to, d, 2, first, last);
    case KvType::kInt8:
      CopyLanes(from, to, d, 1, first, last);
      return CopyLanes(from + scales, to + scales, 1, 4, first, last);
    case KvType::kInt4:
      CopyLanes(from, to, (d + 1) / 2, 1, first, last);
      return CopyLanes(from + scales, to + scales, 2 * groups, 2, first, last);
  }
}

void CopyValueRows(const kernels::KvPageLayout& layout, const std::byte* from, std::byte* to,
                   std::int64_t first, std::int64_t last) noexcept {
  // Lanes that belong to no element are not copied: they may hold data of another sequence.
  const auto copy = [&](std::int64_t offset, std::int64_t row, std::int64_t used) {
    if (used == row) {
      std::copy(from + offset + first * row, from + offset + last * row, to + offset + first * row);
      return;
    }
    for (std::int64_t t = first; t < last; ++t)
      std::copy_n(from + offset + t * row, used, to + offset + t * row);
  };
  const std::int64_t row = layout.v_row, used = layout.head_dim_v;
  const std::int64_t groups = CeilDiv(used, kernels::kKvGroup);
  switch (layout.v_type) {
    case KvType::kF32:
      return copy(0, row * 4, used * 4);
    case KvType::kF16:
    case KvType::kBf16:
      return copy(0, row * 2, used * 2);
    case KvType::kInt8:
      copy(0, row, used);
      return copy(layout.v_scale_bytes, 4, 4);
    case KvType::kInt4:
      copy(0, groups * kernels::kKvGroup / 2, groups * kernels::kKvGroup / 2);
      return copy(layout.v_scale_bytes, groups * 4, groups * 4);
  }
}

}  // namespace

void CopyKvTokens(const kernels::KvPageLayout& layout, const std::byte* from, std::byte* to,
                  std::int64_t first, std::int64_t count) noexcept {
  constexpr std::int64_t kTile = kernels::kKvTile;
  for (std::int64_t s = first, next; s < first + count; s = next) {
    next = std::min(first + count, (s / kTile + 1) * kTile);
    const std::int64_t tile = s / kTile, begin = s % kTile, end = begin + next - s;
    const std::int64_t k = tile * layout.k_tile_bytes;
    const std::int64_t v = layout.v_offset_bytes + tile * layout.v_tile_bytes;
    CopyKeyLanes(layout, from + k, to + k, begin, end);
    CopyValueRows(layout, from + v, to + v, begin, end);
  }
}

}  // namespace manyhead
