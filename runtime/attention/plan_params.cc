#include "runtime/attention/plan_params.h"

#include <cmath>
#include <vector>

#include "runtime/attention/setup.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"
#include "runtime/platform/team.h"
#include "runtime/platform/threads.h"

namespace manyhead {
namespace {

constexpr const char* kCreate = "AttentionPlan::Create";
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;
/// Outside these limits the soft-cap, its inverse or a logit divided by it would be a denormal,
/// which counts as 0.
constexpr float kMinSoftcap = 1e-30F, kMaxSoftcap = 1e30F;

Status CheckSizes(const AttentionParams& params) {
  const struct {
    const char* name;
    std::int64_t value, low, high;
  } sizes[] = {
      {"num_heads", params.num_heads, 1, kMaxHeads},
      {"num_kv_heads", params.num_kv_heads, 1, kMaxHeads},
      {"head_dim", params.head_dim, 1, kMaxHeadDim},
      {"head_dim_v", params.head_dim_v, 0, kMaxHeadDim},
      {"max_q_len", params.max_q_len, 1, kMaxLength},
      {"max_kv_len", params.max_kv_len, 1, kMaxLength},
      {"window", params.window, 0, INT64_MAX},
      {"window_right", params.window_right.value_or(0), 0, INT64_MAX},
      {"num_sink_tokens", params.num_sink_tokens, 0, INT64_MAX},
      {"threads", params.threads, 0, kMaxThreads},
  };
  for (const auto& [name, value, low, high] : sizes) {
    if (Status status = CheckRange(kCreate, name, value, low, high); !status.ok()) return status;
  }
  if (params.num_heads % params.num_kv_heads != 0) {
    return InvalidArgument(kCreate, "num_heads = ", params.num_heads,
                           " is not a multiple of num_kv_heads = ", params.num_kv_heads);
  }
  if (!std::isfinite(params.softmax_scale)) {
    return InvalidArgument(kCreate, "softmax_scale = ", params.softmax_scale,
                           "; expected a finite number");
  }
  if (params.logit_softcap != 0 &&
      !(params.logit_softcap >= kMinSoftcap && params.logit_softcap <= kMaxSoftcap)) {
    return InvalidArgument(kCreate, "logit_softcap = ", params.logit_softcap, "; expected 0 or ",
                           kMinSoftcap, "..", kMaxSoftcap);
  }
  return Status();
}

Status CheckPerHead(const char* name, const std::vector<float>& values, std::int64_t num_heads,
                    bool may_be_none) {
  if (values.empty()) return Status();
  if (static_cast<std::int64_t>(values.size()) != num_heads) {
    return InvalidArgument(kCreate, name, " has ", values.size(),
                           " entries; num_heads = ", num_heads);
  }
  for (std::size_t h = 0; h < values.size(); ++h) {
    if (std::isfinite(values[h]) || (may_be_none && values[h] == -HUGE_VALF)) continue;
    return InvalidArgument(kCreate, name, "[", h, "] = ", values[h], "; expected a finite number",
                           may_be_none ? " or -inf" : "");
  }
  return Status();
}

/// Returns an error where the strict mode of `params` forbids less than the CPU's best instruction
/// set.
Status CheckStrict(const AttentionParams& params, Isa isa) {
  const Isa best = SupportedIsas().back();
  if (!params.strict || SameAttention(isa, best)) return Status();
  return Unsupported(kCreate, "strict: isa = ", IsaName(isa), "; this CPU runs ", IsaName(best));
}

/// Returns how many keys to the right of a query are seen, limited to useful values: positions stay
/// below 2^41.
std::int64_t ResolveRight(const AttentionParams& params) {
  constexpr std::int64_t kUnbounded = std::int64_t{1} << 42;
  if (params.causal) return 0;
  if (params.window_right.has_value()) return std::min(*params.window_right, kUnbounded);
  return params.window > 0 ? 0 : kUnbounded;
}

}  // namespace

Result<AttentionParams> ResolveAttentionParams(const AttentionParams& params) {
  Status status = CheckSizes(params);
  if (status.ok()) {
    status = CheckPerHead("alibi_slopes", params.alibi_slopes, params.num_heads, false);
  }
  if (status.ok()) {
    status = CheckPerHead("sink_logits", params.sink_logits, params.num_heads, true);
  }
  if (!status.ok()) return status;
  const Result<Isa> isa = ResolveIsa(kCreate, params.isa);
  if (!isa.ok()) return isa.status();
  if (const Result<Team> team = SelectTeam(); !team.ok()) return team.status();
  if (status = CheckStrict(params, *isa); !status.ok()) return status;
  AttentionParams resolved = params;
  resolved.isa = *isa;
  if (resolved.head_dim_v == 0) resolved.head_dim_v = resolved.head_dim;
  resolved.window_right = ResolveRight(params);
  if (resolved.threads == 0) resolved.threads = DefaultThreads();
  if (resolved.softmax_scale == 0) {
    resolved.softmax_scale = 1.0F / std::sqrt(static_cast<float>(resolved.head_dim));
  }
  return resolved;
}

}  // namespace manyhead
