#include "manyhead/attention.h"

#include <mutex>
#include <utility>

#include "runtime/attention/plan_impl.h"
#include "runtime/attention/plan_params.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/team.h"

namespace manyhead {

Result<AttentionPlan> AttentionPlan::Create(const AttentionParams& params) {
  const Result<AttentionParams> resolved = ResolveAttentionParams(params);
  if (!resolved.ok()) return resolved.status();
  return AttentionPlan(std::make_unique<Impl>(*resolved));
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
  RunTeam(params().threads,
          [&](Worker& worker) { impl_->weights().OfTensors(worker, stage, weights); });
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
          [&](Worker& worker) { impl_->weights().OfCache(worker, layer, q, lse, weights); });
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
