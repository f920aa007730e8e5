#include "runtime/cache/page_layout.h"

#include <sstream>

namespace manyhead {
namespace {

// 64 tokens keep a page of even small heads (D 64, f16: 16 KiB) a multiple of the operating
// system's 4 KiB, so that a freed page is freed memory, and waste half a page per head on average.
constexpr std::int64_t kDefaultPageSize = 64;
constexpr std::int64_t kMaxPageSize = 65536;
constexpr std::int64_t kMaxKvHeads = 65536;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kAlignBytes = 64;
constexpr std::int64_t kLanePad = 16;  // V rows end on whole vectors of every instruction set

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

struct TileBytes {
  std::int64_t scales;  ///< where the scales begin: the bytes of the elements
  std::int64_t tile;
};

/// A tile of 16 tokens of `elements` numbers each, `int4_elements` where two share a byte.
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
      const std::int64_t groups = (elements + kernels::kKvGroup - 1) / kernels::kKvGroup;
      return {scales, scales + kTile * groups * 2 * kF16Bytes};
    }
  }
  return {};
}

template <class... Parts>
Status Invalid(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  return Status(StatusCode::kInvalidArgument, message.str());
}

Status CheckRange(const char* function, std::size_t layer, const char* name, std::int64_t value,
                  std::int64_t most) {
  if (value >= 1 && value <= most) return Status();
  return Invalid(function, ": layers[", layer, "].", name, " = ", value, "; expected 1..", most);
}

Status CheckType(const char* function, const char* name, KvType type) {
  if (type <= KvType::kInt4) return Status();
  return Invalid(function, ": ", name, " = ", static_cast<int>(type),
                 "; expected 0..4 (f32, f16, bf16, int8, int4)");
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

Result<KvCacheParams> ResolveKvShapes(const KvCacheParams& params, const char* function) {
  KvCacheParams resolved = params;
  if (params.layers.empty()) return Invalid(function, ": layers has 0 entries; expected 1 or more");
  for (std::size_t l = 0; l < params.layers.size(); ++l) {
    KvLayerShape& shape = resolved.layers[l];
    if (shape.head_dim_v == 0) shape.head_dim_v = shape.head_dim;
    Status status = CheckRange(function, l, "num_kv_heads", shape.num_kv_heads, kMaxKvHeads);
    if (status.ok()) status = CheckRange(function, l, "head_dim", shape.head_dim, kMaxHeadDim);
    if (status.ok()) status = CheckRange(function, l, "head_dim_v", shape.head_dim_v, kMaxHeadDim);
    if (!status.ok()) return status;
  }
  if (resolved.page_size == 0) resolved.page_size = kDefaultPageSize;
  if (resolved.page_size < kernels::kKvTile || resolved.page_size > kMaxPageSize ||
      resolved.page_size % kernels::kKvTile != 0)
    return Invalid(function, ": page_size = ", params.page_size, "; expected a multiple of ",
                   kernels::kKvTile, " up to ", kMaxPageSize);
  Status status = CheckType(function, "k_type", params.k_type);
  if (status.ok()) status = CheckType(function, "v_type", params.v_type);
  if (!status.ok()) return status;
  return resolved;
}

Result<std::int64_t> KvPageRowBytes(const KvCacheParams& params, const char* function) {
  std::int64_t sum = 0;
  for (const KvLayerShape& shape : params.layers) {
    const std::int64_t page_bytes =
        MakeKvPageLayout(shape, params.k_type, params.v_type, params.page_size).page_bytes;
    // Below 2^46 by the ranges of the shapes: only the sum can overflow.
    if (__builtin_add_overflow(sum, shape.num_kv_heads * page_bytes, &sum))
      return Invalid(function, ": one page of each KV head of ", params.layers.size(),
                     " layers exceeds 2^63 - 1 bytes");
  }
  return sum;
}

}  // namespace manyhead
