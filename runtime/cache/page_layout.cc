#include "runtime/cache/page_layout.h"

#include <algorithm>
#include <string>

#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

// 64 tokens keep a page of even small heads (D 64, f16: 16 KiB) a multiple of the operating
// system's 4 KiB, so that a freed page is freed memory, and waste half a page per head on average.
constexpr std::int64_t kDefaultPageSize = 64;
constexpr std::int64_t kMaxPageSize = 65536;
constexpr std::int64_t kMaxKvHeads = 65536;
constexpr std::int64_t kMaxKvHeadsInAll = 1 << 20;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxPolicyTokens = std::int64_t{1} << 40;
constexpr std::int64_t kAlignBytes = 64;
constexpr std::int64_t kLanePad = 16;  // V rows end on whole vectors of every instruction set

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
      const std::int64_t groups = CeilDiv(elements, kernels::kKvGroup);
      return {scales, scales + kTile * groups * 2 * kF16Bytes};
    }
  }
  return {};
}

Status CheckType(const char* function, const char* name, KvType type) {
  if (type <= KvType::kInt4) return Status();
  return InvalidArgument(function, "", name, " = ", static_cast<int>(type),
                         "; expected 0..4 (f32, f16, bf16, int8, int4)");
}

/// `what` names the head.
Status CheckPolicy(const KvPolicy& policy, const std::string& what) {
  const auto check = [&](const char* name, std::int64_t value, std::int64_t least) {
    if (value >= least && value <= kMaxPolicyTokens) return Status();
    return MakeError(StatusCode::kInvalidArgument, what, ".policy.", name, " = ", value,
                     "; expected ", least, "..", kMaxPolicyTokens);
  };
  switch (policy.kind) {
    case KvPolicyKind::kFull:
    case KvPolicyKind::kOff:
      return Status();
    case KvPolicyKind::kWindow:
      return check("recent", policy.recent, 1);
    case KvPolicyKind::kSinkRecent: {
      Status status = check("sink", policy.sink, 0);
      return status.ok() ? check("recent", policy.recent, 1) : status;
    }
    case KvPolicyKind::kBudget: {
      Status status = check("sink", policy.sink, 0);
      if (status.ok()) status = check("recent", policy.recent, 0);
      // The pages that hold them may hold up to 15 tokens more each.
      constexpr std::int64_t kPages = 2 * kernels::kKvTile;
      return status.ok() ? check("budget", policy.budget, policy.sink + policy.recent + kPages)
                         : status;
    }
  }
  return MakeError(StatusCode::kInvalidArgument, what,
                   ".policy.kind = ", static_cast<int>(policy.kind), "; expected 0..4");
}

/// Fills in `heads`, or checks them.
Status ResolveHeads(KvCacheParams& params, const char* function) {
  if (params.heads.empty()) {
    for (const KvLayerShape& shape : params.layers)
      params.heads.emplace_back(static_cast<std::size_t>(shape.num_kv_heads),
                                KvHeadParams{params.k_type, params.v_type, {}});
    return Status();
  }
  if (params.heads.size() != params.layers.size())
    return InvalidArgument(function, "heads has ", params.heads.size(), " layers; layers has ",
                           params.layers.size());
  for (std::size_t l = 0; l < params.layers.size(); ++l) {
    const std::vector<KvHeadParams>& heads = params.heads[l];
    if (static_cast<std::int64_t>(heads.size()) != params.layers[l].num_kv_heads)
      return InvalidArgument(function, "heads[", l, "] has ", heads.size(),
                             " entries; num_kv_heads = ", params.layers[l].num_kv_heads);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const std::string what = Concat(function, ": heads[", l, "][", h, "]");
      if (heads[h].k_type > KvType::kInt4 || heads[h].v_type > KvType::kInt4)
        return MakeError(StatusCode::kInvalidArgument, what, " has types ",
                         static_cast<int>(heads[h].k_type), ", ", static_cast<int>(heads[h].v_type),
                         "; expected 0..4 (f32, f16, bf16, int8, int4)");
      if (Status status = CheckPolicy(heads[h].policy, what); !status.ok()) return status;
    }
  }
  return Status();
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

KvHead MakeKvHead(const KvLayerShape& shape, const KvHeadParams& params,
                  std::int64_t page_size) noexcept {
  KvHead head;
  head.params = params;
  const KvPolicy& policy = params.policy;
  // Small groups of tokens compete for a budget; the others' pages are better large.
  head.layout = MakeKvPageLayout(shape, params.k_type, params.v_type,
                                 head.scored() ? kernels::kKvTile : page_size);
  switch (policy.kind) {
    case KvPolicyKind::kWindow:
    case KvPolicyKind::kSinkRecent:
      head.recent = policy.recent;
      head.sink = policy.kind == KvPolicyKind::kSinkRecent ? policy.sink : 0;
      break;
    case KvPolicyKind::kOff:
      head.recent = 0;
      break;
    case KvPolicyKind::kFull:
    case KvPolicyKind::kBudget:
      break;
  }
  return head;
}

std::int64_t KvRowBytes(const KvHead& head, std::int64_t page_size) noexcept {
  return head.off() ? 0 : page_size / head.layout.page_size * head.layout.page_bytes;
}

namespace {

/// Lanes [first, last) of `rows` rows of a tile of 16 tokens, `size` bytes each.
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
  // Lanes that belong to no element stay behind: they may be of anyone.
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

Result<KvCacheParams> ResolveKvShapes(const KvCacheParams& params, const char* function) {
  KvCacheParams resolved = params;
  if (params.layers.empty())
    return InvalidArgument(function, "layers has 0 entries; expected 1 or more");
  std::int64_t num_heads = 0;
  for (std::size_t l = 0; l < params.layers.size(); ++l) {
    KvLayerShape& shape = resolved.layers[l];
    if (shape.head_dim_v == 0) shape.head_dim_v = shape.head_dim;
    const struct {
      const char* name;
      std::int64_t value, most;
    } sizes[] = {{"num_kv_heads", shape.num_kv_heads, kMaxKvHeads},
                 {"head_dim", shape.head_dim, kMaxHeadDim},
                 {"head_dim_v", shape.head_dim_v, kMaxHeadDim}};
    for (const auto& [name, value, most] : sizes)
      if (value < 1 || value > most)
        return InvalidArgument(function, "layers[", l, "].", name, " = ", value, "; expected 1..",
                               most);
    num_heads += shape.num_kv_heads;
  }
  if (num_heads > kMaxKvHeadsInAll)
    return InvalidArgument(function, "layers has ", num_heads, " KV heads; expected up to ",
                           kMaxKvHeadsInAll);
  if (resolved.page_size == 0) resolved.page_size = kDefaultPageSize;
  if (resolved.page_size < kernels::kKvTile || resolved.page_size > kMaxPageSize ||
      resolved.page_size % kernels::kKvTile != 0)
    return InvalidArgument(function, "page_size = ", params.page_size, "; expected a multiple of ",
                           kernels::kKvTile, " up to ", kMaxPageSize);
  Status status = CheckType(function, "k_type", params.k_type);
  if (status.ok()) status = CheckType(function, "v_type", params.v_type);
  if (!status.ok()) return status;
  if (status = ResolveHeads(resolved, function); !status.ok()) return status;
  return resolved;
}

}  // namespace manyhead
