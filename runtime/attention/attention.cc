#include "manyhead/attention.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/attention/plan_impl.h"
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
/// Beyond these the soft-cap, its inverse or a logit over it would be a denormal, which counts as
/// 0.
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

/// Where the strict mode of `params` does not let it run on less than the CPU's best.
Status CheckStrict(const AttentionParams& params, Isa isa) {
  const Isa best = SupportedIsas().back();
  if (!params.strict || SameAttention(isa, best)) return Status();
  return Unsupported(kCreate, "strict: isa = ", IsaName(isa), "; this CPU runs ", IsaName(best));
}

/// Keys to the right of a query that it sees, of any use: positions stay below 2^41.
std::int64_t ResolveRight(const AttentionParams& params) {
  constexpr std::int64_t kUnbounded = std::int64_t{1} << 42;
  if (params.causal) return 0;
  if (params.window_right.has_value()) return std::min(*params.window_right, kUnbounded);
  return params.window > 0 ? 0 : kUnbounded;
}

}  // namespace

Result<AttentionPlan> AttentionPlan::Create(const AttentionParams& params) {
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
  return AttentionPlan(std::make_unique<Impl>(resolved));
}

AttentionPlan::AttentionPlan(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

const AttentionParams& AttentionPlan::params() const noexcept { return impl_->params(); }

std::int64_t AttentionPlan::scratch_bytes() const noexcept { return impl_->scratch_bytes(); }

namespace {

constexpr const char* kRun = "AttentionPlan::Run";

Status CheckNotNull(const char* name, const void* pointer, std::int64_t tokens) {
  if (tokens == 0 || pointer != nullptr) return Status();
  return InvalidArgument(kRun, name, " = null; expected ", tokens, " tokens");
}

Status CheckTensors(std::int64_t q_len, const float* q, const float* out) {
  Status status = CheckNotNull("q", q, q_len);
  return status.ok() ? CheckNotNull("out", out, q_len) : status;
}

}  // namespace

Status AttentionPlan::Run(const KvCache& cache, std::int64_t layer,
                          std::span<const SequenceId> sequences, const std::int64_t* qo_indptr,
                          const float* q, float* out, float* lse,
                          const AttentionBias& bias) noexcept {
  const std::lock_guard turn(impl_->turn());
  Status status = impl_->CheckLayer(cache, layer, kRun);
  if (status.ok()) status = impl_->Prepare(cache, sequences, qo_indptr, bias, kRun);
  if (status.ok()) status = CheckTensors(impl_->q_len(), q, out);
  if (!status.ok()) return status;
  RunTeam(params().threads, [&](Worker& worker) { impl_->RunOn(worker, layer, q, out, lse); });
  return Status();
}

Status AttentionPlan::Run(const AttentionTensors& tensors) noexcept {
  const std::lock_guard turn(impl_->turn());
  Status status = impl_->Prepare(tensors, kRun);
  if (status.ok() && impl_->q_len() > 0) status = CheckNotNull("v", tensors.v.data, tensors.kv_len);
  if (status.ok()) status = CheckTensors(impl_->q_len(), tensors.q.data, tensors.out.data);
  if (!status.ok()) return status;
  RunTeam(params().threads,
          [&](Worker& worker) { impl_->RunOn(worker, 0, tensors.q, tensors.out, tensors.lse); });
  return Status();
}

Status AttentionPlan::Run(std::int64_t q_len, std::int64_t kv_len, const float* q, const float* k,
                          const float* v, float* out, float* lse) noexcept {
  const AttentionParams& p = params();
  const std::int64_t d = p.head_dim, dv = p.head_dim_v;
  AttentionTensors tensors;
  tensors.q_len = q_len;
  tensors.kv_len = kv_len;
  tensors.q = {q, 0, p.num_heads * d, d};
  tensors.k = {k, 0, p.num_kv_heads * d, d};
  tensors.v = {v, 0, p.num_kv_heads * dv, dv};
  tensors.out = {out, 0, p.num_heads * dv, dv};
  tensors.lse = {lse, 0, p.num_heads, 1};
  return Run(tensors);
}

Status AttentionPlan::Weights(const AttentionTensors& tensors, LogitStage stage,
                              float* weights) noexcept {
  constexpr const char* kName = "AttentionPlan::Weights";
  const std::lock_guard turn(impl_->turn());
  Status status = impl_->Prepare(tensors, kName);
  if (!status.ok()) return status;
  if (impl_->q_len() == 0 || tensors.kv_len == 0) return Status();
  if (tensors.q.data == nullptr)
    return InvalidArgument(kName, "q = null; expected the queries of Run");
  if (weights == nullptr)
    return InvalidArgument(kName, "weights = null; expected room for every logit");
  if (stage > LogitStage::kProbs)
    return InvalidArgument(kName, "stage = ", static_cast<int>(stage), "; expected 0..3");
  if (stage == LogitStage::kProbs && tensors.lse.data == nullptr) {
    return InvalidArgument(kName, "lse = null; expected what Run wrote");
  }
  RunTeam(params().threads, [&](Worker& worker) { impl_->WeightsOn(worker, stage, weights); });
  return Status();
}

Status AttentionPlan::Weights(const KvCache& cache, std::int64_t layer, SequenceId sequence,
                              std::int64_t q_len, const float* q, const float* lse, float* weights,
                              const AttentionBias& bias) noexcept {
  constexpr const char* kName = "AttentionPlan::Weights";
  const std::lock_guard turn(impl_->turn());
  const std::int64_t qo_indptr[] = {0, q_len};
  Status status = impl_->CheckLayer(cache, layer, kName);
  if (status.ok()) status = impl_->Prepare(cache, {&sequence, 1}, qo_indptr, bias, kName);
  if (!status.ok() || q_len == 0) return status;
  const struct {
    const char* name;
    const float* data;
  } pointers[] = {{"q", q}, {"lse", lse}, {"weights", weights}};
  for (const auto& [name, data] : pointers) {
    if (data == nullptr)
      return InvalidArgument(kName, name, " = null; expected ", q_len, " tokens");
  }
  RunTeam(params().threads,
          [&](Worker& worker) { impl_->CacheWeightsOn(worker, layer, q, lse, weights); });
  return Status();
}

Result<AttentionExplanation> AttentionPlan::Explain(KvType k_type, KvType v_type,
                                                    std::int64_t q_len, std::int64_t kv_len) const {
  constexpr const char* kName = "AttentionPlan::Explain";
  const struct {
    const char *name, *limit;
    std::int64_t value, most;
  } lengths[] = {{"q_len", "max_q_len", q_len, params().max_q_len},
                 {"kv_len", "max_kv_len", kv_len, params().max_kv_len}};
  for (const auto& [name, limit, value, most] : lengths) {
    if (value < 1 || value > most)
      return InvalidArgument(kName, name, " = ", value, "; expected 1..", most, ", the plan's ",
                             limit);
  }
  if (k_type > KvType::kInt4 || v_type > KvType::kInt4)
    return InvalidArgument(kName, "unknown KvType");
  return impl_->Explain(k_type, v_type, q_len, kv_len);
}

}  // namespace manyhead
