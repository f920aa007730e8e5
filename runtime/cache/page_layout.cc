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

std::int64_t ElementBytes(KvType type) noexcept { return type == KvType::kF32 ? 4 : 2; }

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
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
  if (type == KvType::kF32 || type == KvType::kF16 || type == KvType::kBf16) return Status();
  return Invalid(function, ": ", name, " = ", static_cast<int>(type),
                 "; expected 0..2 (f32, f16, bf16)");
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
  layout.v_offset_bytes = RoundUp(page_size * layout.head_dim * ElementBytes(k_type), kAlignBytes);
  layout.page_bytes =
      layout.v_offset_bytes + RoundUp(page_size * layout.v_row * ElementBytes(v_type), kAlignBytes);
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
