#include <algorithm>
#include <utility>

#include "runtime/attention/plan_impl.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kAttentionSplit;

/// Positions beyond which distances would no longer be exact.
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 40;

template <class T>
Status CheckLogitTensor(const LogitTensor<T>& tensor, const char* name, std::int64_t kv_len,
                        const char* function) {
  if (tensor.data == nullptr || tensor.kv_len >= kv_len) return Status();
  return InvalidArgument(function, name, ".kv_len = ", tensor.kv_len,
                         " is less than kv_len = ", kv_len);
}

Status CheckBias(const AttentionBias& bias, std::int64_t kv_len, const char* function) {
  if (Status status = CheckLogitTensor(bias.bias, "bias", kv_len, function); !status.ok()) {
    return status;
  }
  return CheckLogitTensor(bias.mask, "mask", kv_len, function);
}

}  // namespace

Status AttentionPlan::Impl::CheckLayer(const KvCache& cache, std::int64_t layer,
                                       const char* function) const noexcept {
  const auto& layers = cache.params().layers;
  const auto count = static_cast<std::int64_t>(layers.size());
  if (layer < 0 || layer >= count) {
    return InvalidArgument(function, "layer = ", layer, "; expected 0..", count - 1);
  }
  const KvLayerShape& shape = layers[static_cast<std::size_t>(layer)];
  const struct {
    const char* name;
    std::int64_t plan, cache;
  } sizes[] = {
      {"num_kv_heads", params_.num_kv_heads, shape.num_kv_heads},
      {"head_dim", params_.head_dim, shape.head_dim},
      {"head_dim_v", params_.head_dim_v, shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v},
  };
  for (const auto& [name, plan, stored] : sizes) {
    if (plan == stored) continue;
    return InvalidArgument(function, name, " = ", plan, " of the plan differs from ", name, " = ",
                           stored, " of layer ", layer, " in the cache");
  }
  return Status();
}

Status AttentionPlan::Impl::AddRequest(std::int64_t index, SequenceId sequence, std::int64_t q_len,
                                       std::int64_t kv_len, std::int64_t position,
                                       const char* function) noexcept {
  if (q_len > params_.max_q_len - q_len_) {
    return InvalidArgument(function, "q_len = ", q_len_ + q_len,
                           " exceeds max_q_len = ", params_.max_q_len);
  }
  if (kv_len > params_.max_kv_len) {
    return InvalidArgument(function, "kv_len = ", kv_len, " of request ", index,
                           " exceeds max_kv_len = ", params_.max_kv_len);
  }
  if (q_len == 0) return Status();  // nothing to do, and no place needed
  Request& request = requests_[static_cast<std::size_t>(num_requests_++)];
  request = partition_.MakeRequest(q_len, kv_len, position);
  request.index = index;
  request.sequence = sequence;
  request.q_begin = q_len_;
  q_len_ += q_len;
  return Status();
}

Status AttentionPlan::Impl::Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                                    const std::int64_t* qo_indptr, const AttentionBias& bias,
                                    const char* function) noexcept {
  cache_ = &cache;
  tensors_ = nullptr;
  bias_ = bias;
  Restart();
  if (qo_indptr != nullptr && qo_indptr[0] != 0) {
    return InvalidArgument(function, "qo_indptr[0] = ", qo_indptr[0], "; expected 0");
  }
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    if (qo_indptr != nullptr && qo_indptr[b + 1] < qo_indptr[b]) {
      return InvalidArgument(function, "qo_indptr[", b + 1, "] = ", qo_indptr[b + 1],
                             " is less than qo_indptr[", b, "] = ", qo_indptr[b]);
    }
    const std::int64_t kv_len = cache.length(sequences[b]);
    if (kv_len < 0) {
      return InvalidArgument(function, "sequences[", b,
                             "] = ", static_cast<std::int32_t>(sequences[b]),
                             " is not a sequence of the cache");
    }
    const std::int64_t q_len = qo_indptr == nullptr ? 1 : qo_indptr[b + 1] - qo_indptr[b];
    const std::int64_t first_query = cache.impl().FirstQuery(sequences[b]);
    if (q_len > 0 && first_query > 0 && kv_len - q_len < first_query) {
      return InvalidArgument(function, "q_len = ", q_len, " of request ", b, " begins at position ",
                             kv_len - q_len, "; keys that queries before position ", first_query,
                             " see were evicted");
    }
    Status status = CheckBias(bias, kv_len, function);
    if (status.ok()) {
      status = AddRequest(static_cast<std::int64_t>(b), sequences[b], q_len, kv_len, kv_len - q_len,
                          function);
    }
    if (!status.ok()) return status;
    if ((params_.causal || params_.window > 0) && q_len > kv_len) {
      return InvalidArgument(function, "q_len = ", q_len, " of request ", b,
                             " exceeds its kv_len = ", kv_len);
    }
  }
  return CutItems(function);
}

Status AttentionPlan::Impl::CheckTensors(const AttentionTensors& tensors,
                                         const char* function) const noexcept {
  const auto& [batch, q_len, kv_len, kv_lens, query_starts, k_type, v_type, q, k, v, out, lse,
               bias] = tensors;
  const struct {
    const char* name;
    std::int64_t value;
  } sizes[] = {{"batch", batch}, {"q_len", q_len}, {"kv_len", kv_len}};
  for (const auto& [name, value] : sizes) {
    if (value < 0) return InvalidArgument(function, name, " = ", value, "; expected 0 or more");
  }
  for (const auto& [name, type] : {std::pair("k_type", k_type), std::pair("v_type", v_type)}) {
    if (type > KvType::kBf16) {
      return InvalidArgument(function, name, " = ", KvTypeName(type),
                             "; expected f32, f16 or bf16 (a KvCache holds the others)");
    }
  }
  if (batch == 0 || q_len == 0) return Status();
  if (batch > 1 && q_len > params_.max_q_len / batch) {
    return InvalidArgument(function, "batch = ", batch, " times q_len = ", q_len,
                           " exceeds max_q_len = ", params_.max_q_len);
  }
  std::int64_t longest = kv_lens == nullptr ? kv_len : 0;
  for (std::int64_t b = 0; kv_lens != nullptr && b < batch; ++b) {
    if (kv_lens[b] < 0 || kv_lens[b] > kv_len) {
      return InvalidArgument(function, "kv_lens[", b, "] = ", kv_lens[b], "; expected 0..", kv_len);
    }
    longest = std::max(longest, kv_lens[b]);
  }
  for (std::int64_t b = 0; query_starts != nullptr && b < batch; ++b) {
    if (query_starts[b] >= -kMaxPosition && query_starts[b] <= kMaxPosition) continue;
    return InvalidArgument(function, "query_starts[", b, "] = ", query_starts[b],
                           "; expected -2^40..2^40");
  }
  if (kv_len > 0 && k.data == nullptr) {
    return InvalidArgument(function, "k = null; expected ", kv_len, " tokens");
  }
  return CheckBias(bias, longest, function);
}

Status AttentionPlan::Impl::Prepare(const AttentionTensors& tensors,
                                    const char* function) noexcept {
  cache_ = nullptr;
  tensors_ = &tensors;
  bias_ = tensors.bias;
  Restart();
  if (Status status = CheckTensors(tensors, function); !status.ok()) return status;
  for (std::int64_t b = 0; b < tensors.batch; ++b) {
    const std::int64_t kv_len = tensors.kv_lens != nullptr ? tensors.kv_lens[b] : tensors.kv_len;
    const std::int64_t position =
        tensors.query_starts != nullptr ? tensors.query_starts[b] : kv_len - tensors.q_len;
    if (Status status = AddRequest(b, SequenceId{}, tensors.q_len, kv_len, position, function);
        !status.ok()) {
      return status;
    }
  }
  for (std::int64_t b = 0; b < num_requests_; ++b) {
    requests_[static_cast<std::size_t>(b)].q_begin = 0;  // views have a stride for the batch
  }
  return CutItems(function);
}

Status AttentionPlan::Impl::CutItems(const char* function) noexcept {
  const AttentionWorkCounts work =
      partition_.Cut(std::span(requests_).first(static_cast<std::size_t>(num_requests_)));
  if (work.unsplit != nullptr && params_.strict) {
    return Unsupported(function, "strict: the keys of request ", work.unsplit->index,
                       " are not split over threads: partial states of ",
                       work.unsplit_floats * kFloatBytes, " bytes; scratch has ",
                       work.unsplit_room * kFloatBytes);
  }
  items_ = work.items;
  merges_ = work.merges;
  return Status();
}

}  // namespace manyhead
