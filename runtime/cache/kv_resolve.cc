#include "runtime/cache/kv_resolve.h"

#include <string>

#include "kernels/kv_layout.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"

namespace manyhead {
namespace {

constexpr const char* kCreate = "KvCache::Create";
// 64 tokens keep a page of even small heads (D 64, f16: 16 KiB) a multiple of the operating
// system's 4 KiB, so that a freed page is freed memory, and waste half a page per head on average.
constexpr std::int64_t kDefaultPageSize = 64;
constexpr std::int64_t kMaxPageSize = 65536;
constexpr std::int64_t kMaxKvHeads = 65536;
constexpr std::int64_t kMaxKvHeadsInAll = 1 << 20;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxPolicyTokens = std::int64_t{1} << 40;

Status CheckType(const char* function, const char* name, KvType type) {
  if (type <= KvType::kInt4) return Status();
  return InvalidArgument(function, "", name, " = ", static_cast<int>(type),
                         "; expected 0..4 (f32, f16, bf16, int8, int4)");
}

/// Checks a policy; `what` names the head.
Status CheckPolicy(const KvPolicy& policy, const std::string& what) {
  const auto check = [&](const char* name, std::int64_t value, std::int64_t least) {
    if (value >= least && value <= kMaxPolicyTokens) return Status();
    return MakeError(StatusCode::kInvalidArgument, what, ".policy.", name, " = ", value,
                     "; expected ", least, "..", kMaxPolicyTokens);
  };
  const bool windowed =
      policy.kind == KvPolicyKind::kWindow || policy.kind == KvPolicyKind::kSinkRecent;
  if (!windowed && policy.margin != 0)
    return MakeError(StatusCode::kInvalidArgument, what, ".policy.margin = ", policy.margin,
                     "; expected 0 where the policy is ", FormatKvPolicy(policy));
  switch (policy.kind) {
    case KvPolicyKind::kFull:
    case KvPolicyKind::kOff:
      return Status();
    case KvPolicyKind::kWindow:
    case KvPolicyKind::kSinkRecent: {
      Status status = Status();
      if (policy.kind == KvPolicyKind::kSinkRecent) status = check("sink", policy.sink, 0);
      if (status.ok()) status = check("recent", policy.recent, 1);
      return status.ok() ? check("margin", policy.margin, 0) : status;
    }
    case KvPolicyKind::kBudget: {
      Status status = check("sink", policy.sink, 0);
      if (status.ok()) status = check("recent", policy.recent, 0);
      // The pages of these tokens may hold up to 15 further tokens each.
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

Result<KvCacheParams> ResolveKvCacheParams(const KvCacheParams& params) {
  Result<KvCacheParams> resolved = ResolveKvShapes(params, kCreate);
  if (!resolved.ok()) return resolved.status();
  if (params.max_tokens < 1)
    return InvalidArgument(kCreate, "max_tokens = ", params.max_tokens, "; expected 1 or more");
  if (params.max_prefixes < 0)
    return InvalidArgument(kCreate, "max_prefixes = ", params.max_prefixes, "; expected 0 or more");
  const Result<std::int64_t> least = KvCapacityBytes(*resolved, 1, 1);
  if (!least.ok()) return least.status();
  if (params.capacity_bytes < *least)
    return InvalidArgument(kCreate, "capacity_bytes = ", params.capacity_bytes, " is less than ",
                           *least, ", what a sequence of one token takes");
  const Result<Isa> isa = ResolveIsa(kCreate, params.isa);
  if (!isa.ok()) return isa.status();
  resolved->isa = *isa;
  return resolved;
}

}  // namespace manyhead
