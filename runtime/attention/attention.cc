#include "manyhead/attention.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/attention/plan_impl.h"
#include "runtime/platform/team.h"
#include "runtime/platform/threads.h"

namespace manyhead {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;
constexpr int kMaxThreads = 4096;

template <class... Parts>
Status Invalid(const Parts&... parts) {
  std::ostringstream message;
  message << "AttentionPlan::Create: ";
  (message << ... << parts);
  return Status(StatusCode::kInvalidArgument, message.str());
}

Status CheckRange(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return Status();
  return Invalid(name, " = ", value, "; expected ", low, "..", high);
}

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
      {"threads", params.threads, 0, kMaxThreads},
  };
  for (const auto& [name, value, low, high] : sizes) {
    if (Status status = CheckRange(name, value, low, high); !status.ok()) return status;
  }
  if (params.num_heads % params.num_kv_heads != 0) {
    return Invalid("num_heads = ", params.num_heads,
                   " is not a multiple of num_kv_heads = ", params.num_kv_heads);
  }
  if (!std::isfinite(params.softmax_scale)) {
    return Invalid("softmax_scale = ", params.softmax_scale, "; expected a finite number");
  }
  return Status();
}

Result<Isa> ResolveIsa(const AttentionParams& params) {
  if (!params.isa.has_value()) return SelectIsa();
  const std::vector<Isa> supported = SupportedIsas();
  if (std::find(supported.begin(), supported.end(), *params.isa) != supported.end()) {
    return *params.isa;
  }
  std::ostringstream message;
  message << "AttentionPlan::Create: isa = " << static_cast<int>(*params.isa)
          << "; this CPU runs up to " << IsaName(supported.back());
  return Status(StatusCode::kUnsupported, message.str());
}

}  // namespace

Result<AttentionPlan> AttentionPlan::Create(const AttentionParams& params) {
  if (Status status = CheckSizes(params); !status.ok()) return status;
  const Result<Isa> isa = ResolveIsa(params);
  if (!isa.ok()) return isa.status();
  AttentionParams resolved = params;
  resolved.isa = *isa;
  if (resolved.head_dim_v == 0) resolved.head_dim_v = resolved.head_dim;
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

Status CheckTensors(std::int64_t q_len, const float* q, const float* out) {
  if (q_len == 0 || (q != nullptr && out != nullptr)) return Status();
  std::ostringstream message;
  message << "AttentionPlan::Run: " << (q == nullptr ? "q" : "out") << " = null; expected " << q_len
          << " tokens";
  return Status(StatusCode::kInvalidArgument, message.str());
}

}  // namespace

Status AttentionPlan::Run(const KvCache& cache, std::int64_t layer,
                          std::span<const SequenceId> sequences, const std::int64_t* qo_indptr,
                          const float* q, float* out, float* lse,
                          const AttentionBias& bias) noexcept {
  if (bias.bias.data != nullptr || bias.mask.data != nullptr) {
    return Status(StatusCode::kUnsupported, "AttentionPlan::Run: bias");
  }
  constexpr const char* kName = "AttentionPlan::Run";
  if (Status status = impl_->CheckLayer(cache, layer, kName); !status.ok()) return status;
  if (Status status = impl_->Prepare(cache, sequences, qo_indptr, kName); !status.ok()) {
    return status;
  }
  if (Status status = CheckTensors(impl_->q_len(), q, out); !status.ok()) return status;
  RunTeam(params().threads, [&](Worker& worker) { impl_->RunOn(worker, layer, q, out, lse); });
  return Status();
}

Status AttentionPlan::Run(std::int64_t q_len, std::int64_t kv_len, const float* q, const float* k,
                          const float* v, float* out, float* lse) noexcept {
  if (Status status = impl_->Prepare(q_len, kv_len, k, v, "AttentionPlan::Run"); !status.ok()) {
    return status;
  }
  if (Status status = CheckTensors(q_len, q, out); !status.ok()) return status;
  RunTeam(params().threads, [&](Worker& worker) { impl_->RunOn(worker, 0, q, out, lse); });
  return Status();
}

Status AttentionPlan::Run(const AttentionTensors&) noexcept {
  return Status(StatusCode::kUnsupported, "AttentionPlan::Run: tensors");
}

Status AttentionPlan::Weights(const AttentionTensors&, LogitStage, float*) noexcept {
  return Status(StatusCode::kUnsupported, "AttentionPlan::Weights");
}

Result<AttentionExplanation> AttentionPlan::Explain(KvType, KvType, std::int64_t,
                                                    std::int64_t) const {
  return Status(StatusCode::kUnsupported, "AttentionPlan::Explain");
}

std::string AttentionExplanation::ToString() const { return kernel; }

std::vector<float> AlibiSlopes(std::int64_t) { return {}; }

Status MergeAttentionStates(std::int64_t, std::int64_t, const float*, const float*, const float*,
                            const float*, float*, float*) noexcept {
  return Status(StatusCode::kUnsupported, "MergeAttentionStates");
}

}  // namespace manyhead
