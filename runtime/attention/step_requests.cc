#include "runtime/attention/step_requests.h"

#include "runtime/attention/check_inputs.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/errors.h"

namespace manyhead {

void AttentionStepRequests::Restart(const KvCache* cache, const AttentionTensors* tensors,
                                    const AttentionBias& bias) noexcept {
  cache_ = cache;
  tensors_ = tensors;
  bias_ = bias;
  count_ = q_len_ = items_ = merges_ = 0;
}

Status AttentionStepRequests::Add(std::int64_t index, SequenceId sequence, std::int64_t q_len,
                                  std::int64_t kv_len, std::int64_t position,
                                  const char* function) noexcept {
  const AttentionParams& params = setup_.params;
  if (q_len > params.max_q_len - q_len_) {
    return InvalidArgument(function, "q_len = ", q_len_ + q_len,
                           " exceeds max_q_len = ", params.max_q_len);
  }
  if (kv_len > params.max_kv_len) {
    return InvalidArgument(function, "kv_len = ", kv_len, " of request ", index,
                           " exceeds max_kv_len = ", params.max_kv_len);
  }
  if (q_len == 0) return Status();  // no work and no place are needed
  AttentionRequest& request = requests_[static_cast<std::size_t>(count_++)];
  request = setup_.partition.MakeRequest(q_len, kv_len, position);
  request.index = index;
  request.sequence = sequence;
  request.q_begin = q_len_;
  q_len_ += q_len;
  return Status();
}

Status AttentionStepRequests::Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                                      const std::int64_t* qo_indptr, const AttentionBias& bias,
                                      const char* function) noexcept {
  Restart(&cache, nullptr, bias);
  if (qo_indptr != nullptr && qo_indptr[0] != 0) {
    return InvalidArgument(function, "qo_indptr[0] = ", qo_indptr[0], "; expected 0");
  }
  const AttentionParams& params = setup_.params;
  for (std::int64_t b = 0; b < std::ssize(sequences); ++b) {
    const SequenceId sequence = sequences[static_cast<std::size_t>(b)];
    Status status = CheckAttentionSequence(cache, sequence, b, qo_indptr, function);
    if (!status.ok()) return status;
    const std::int64_t kv_len = cache.length(sequence);
    const std::int64_t q_len = qo_indptr == nullptr ? 1 : qo_indptr[b + 1] - qo_indptr[b];
    status = CheckAttentionBias(bias, kv_len, function);
    if (status.ok()) status = Add(b, sequence, q_len, kv_len, kv_len - q_len, function);
    if (!status.ok()) return status;
    if ((params.causal || params.window > 0) && q_len > kv_len) {
      return InvalidArgument(function, "q_len = ", q_len, " of request ", b,
                             " exceeds its kv_len = ", kv_len);
    }
  }
  return CutItems(function);
}

Status AttentionStepRequests::Prepare(const AttentionTensors& tensors,
                                      const char* function) noexcept {
  Restart(nullptr, &tensors, tensors.bias);
  Status status = CheckAttentionTensors(setup_.params, tensors, function);
  for (std::int64_t b = 0; status.ok() && b < tensors.batch; ++b) {
    const std::int64_t kv_len = tensors.kv_lens != nullptr ? tensors.kv_lens[b] : tensors.kv_len;
    const std::int64_t position =
        tensors.query_starts != nullptr ? tensors.query_starts[b] : kv_len - tensors.q_len;
    status = Add(b, SequenceId{}, tensors.q_len, kv_len, position, function);
  }
  if (!status.ok()) return status;
  for (std::int64_t b = 0; b < count_; ++b) {
    requests_[static_cast<std::size_t>(b)].q_begin = 0;  // views have a batch stride
  }
  return CutItems(function);
}

Status AttentionStepRequests::CutItems(const char* function) noexcept {
  const AttentionWorkCounts work =
      setup_.partition.Cut(std::span(requests_).first(static_cast<std::size_t>(count_)));
  if (work.unsplit != nullptr && setup_.params.strict) {
    constexpr std::int64_t kFloatBytes = sizeof(float);
    return Unsupported(function, "strict: the keys of request ", work.unsplit->index,
                       " are not split over threads: partial states of ",
                       work.unsplit_floats * kFloatBytes, " bytes; scratch has ",
                       work.unsplit_room * kFloatBytes);
  }
  items_ = work.items;
  merges_ = work.merges;
  return Status();
}

kernels::KvHeadView AttentionStepRequests::KeysOf(const AttentionRequest& request,
                                                  std::int64_t layer,
                                                  std::int64_t head) const noexcept {
  if (cache_ == nullptr) return {};
  return cache_->impl().HeadView(request.sequence, layer, head);
}

}  // namespace manyhead
