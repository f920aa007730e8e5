#include "runtime/attention/check_inputs.h"

#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

/// Positions beyond which distances would no longer be exact.
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 40;

template <class T>
Status CheckLogitTensor(const LogitTensor<T>& tensor, const char* name, std::int64_t kv_len,
                        const char* function) {
  if (tensor.data == nullptr || tensor.kv_len >= kv_len) return Status();
  return InvalidArgument(function, name, ".kv_len = ", tensor.kv_len,
                         " is less than kv_len = ", kv_len);
}

}  // namespace

Status CheckAttentionLayer(const AttentionParams& params, const KvCache& cache, std::int64_t layer,
                           const char* function) noexcept {
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
      {"num_kv_heads", params.num_kv_heads, shape.num_kv_heads},
      {"head_dim", params.head_dim, shape.head_dim},
      {"head_dim_v", params.head_dim_v, shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v},
  };
  for (const auto& [name, plan, stored] : sizes) {
    if (plan == stored) continue;
    return InvalidArgument(function, name, " = ", plan, " of the plan differs from ", name, " = ",
                           stored, " of layer ", layer, " in the cache");
  }
  return Status();
}

Status CheckAttentionSequence(const KvCache& cache, SequenceId sequence, std::int64_t index,
                              const std::int64_t* qo_indptr, const char* function) noexcept {
  if (qo_indptr != nullptr && qo_indptr[index + 1] < qo_indptr[index]) {
    return InvalidArgument(function, "qo_indptr[", index + 1, "] = ", qo_indptr[index + 1],
                           " is less than qo_indptr[", index, "] = ", qo_indptr[index]);
  }
  const std::int64_t kv_len = cache.length(sequence);
  if (kv_len < 0) {
    return InvalidArgument(function, "sequences[", index,
                           "] = ", static_cast<std::int32_t>(sequence),
                           " is not a sequence of the cache");
  }
  const std::int64_t q_len = qo_indptr == nullptr ? 1 : qo_indptr[index + 1] - qo_indptr[index];
  const std::int64_t first_query = cache.impl().FirstQuery(sequence);
  if (q_len > 0 && first_query > 0 && kv_len - q_len < first_query) {
    return InvalidArgument(
        function, "q_len = ", q_len, " of request ", index, " begins at position ", kv_len - q_len,
        "; keys that queries before position ", first_query, " see were evicted");
  }
  return Status();
}

Status CheckAttentionBias(const AttentionBias& bias, std::int64_t kv_len,
                          const char* function) noexcept {
  if (Status status = CheckLogitTensor(bias.bias, "bias", kv_len, function); !status.ok()) {
    return status;
  }
  return CheckLogitTensor(bias.mask, "mask", kv_len, function);
}

Status CheckAttentionTensors(const AttentionParams& params, const AttentionTensors& tensors,
                             const char* function) noexcept {
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
  if (batch > 1 && q_len > params.max_q_len / batch) {
    return InvalidArgument(function, "batch = ", batch, " times q_len = ", q_len,
                           " exceeds max_q_len = ", params.max_q_len);
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
  return CheckAttentionBias(bias, longest, function);
}

}  // namespace manyhead
