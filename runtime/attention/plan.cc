#include <algorithm>
#include <cstddef>
#include <new>
#include <sstream>

#include "runtime/attention/plan_impl.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionRows;
using kernels::kAttentionSplit;
using kernels::kKvTile;

constexpr std::align_val_t kAlignment{64};

/// Items per thread below which the keys are split: dynamic hand-out then evens out the load.
constexpr std::int64_t kItemsPerThread = 4;
/// Decode steps of so many queries at once may split; batches above have items enough.
constexpr std::int64_t kSplitQueries = 4;
constexpr std::int64_t kMaxPartsBytes = 64 << 20;

std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

std::int64_t CeilDiv(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

template <class... Parts>
Status Invalid(const char* function, const Parts&... parts) {
  std::ostringstream message;
  message << function << ": ";
  (message << ... << parts);
  return Status(StatusCode::kInvalidArgument, message.str());
}

}  // namespace

void AttentionPlan::Impl::FreeScratch::operator()(float* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

AttentionPlan::Impl::Impl(const AttentionParams& params)
    : params_(params),
      kernels_(KernelsFor(*params.isa).attention),
      v_row_(RoundUp(params.head_dim_v, kKvTile)),
      requests_(static_cast<std::size_t>(params.max_q_len)) {
  const std::int64_t d = params.head_dim;
  thread_floats_ = RoundUp(kAttentionRows * d, kKvTile) + kAttentionRows * kAttentionBlock +
                   kAttentionBlock * (d + v_row_) + 2 * kAttentionRows * (2 + v_row_);
  const std::int64_t splits = CeilDiv(params.max_kv_len, kAttentionSplit);
  if (params.threads > 1 && splits > 1) {
    const std::int64_t rows = group() * std::min(params.max_q_len, kSplitQueries);
    // Wide enough for any input: 2^16 heads * 2^22 splits * 2^13 floats.
    parts_floats_ =
        std::min(params.num_kv_heads * splits * PartFloats(rows), kMaxPartsBytes / kFloatBytes);
  }
  scratch_floats_ = params.threads * thread_floats_ + parts_floats_;
  scratch_.reset(
      static_cast<float*>(::operator new(static_cast<std::size_t>(scratch_bytes()), kAlignment)));
}

std::int64_t AttentionPlan::Impl::PartFloats(std::int64_t rows) const noexcept {
  return CeilDiv(rows, kAttentionRows) *
         (2 * kAttentionRows + std::min(rows, kAttentionRows) * v_row_);
}

kernels::AttentionState AttentionPlan::Impl::PartOf(const Request& request, std::int64_t head,
                                                    std::int64_t tile,
                                                    std::int64_t part) const noexcept {
  const std::int64_t head_floats = PartFloats(request.q_len * group());
  float* m = scratch_.get() + params_.threads * thread_floats_ + request.parts_offset +
             (head * request.splits + part) * head_floats + tile * (head_floats / request.tiles);
  return {m, m + kAttentionRows, m + 2 * kAttentionRows};
}

AttentionPlan::Impl::Scratch AttentionPlan::Impl::ScratchOf(int thread) const noexcept {
  float* next = scratch_.get() + thread * thread_floats_;
  const auto take = [&next](std::int64_t floats) {
    float* taken = next;
    next += RoundUp(floats, kKvTile);
    return taken;
  };
  Scratch scratch{};
  scratch.q = take(kAttentionRows * params_.head_dim);
  scratch.probs = take(kAttentionRows * kAttentionBlock);
  scratch.k = take(kAttentionBlock * params_.head_dim);
  scratch.v = take(kAttentionBlock * v_row_);
  for (kernels::AttentionState* state : {&scratch.total, &scratch.part}) {
    state->m = take(kAttentionRows);
    state->d = take(kAttentionRows);
    state->o = take(kAttentionRows * v_row_);
  }
  return scratch;
}

Status AttentionPlan::Impl::CheckLayer(const KvCache& cache, std::int64_t layer,
                                       const char* function) const noexcept {
  const auto& layers = cache.params().layers;
  const auto count = static_cast<std::int64_t>(layers.size());
  if (layer < 0 || layer >= count) {
    return Invalid(function, "layer = ", layer, "; expected 0..", count - 1);
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
    return Invalid(function, name, " = ", plan, " of the plan differs from ", name, " = ", stored,
                   " of layer ", layer, " in the cache");
  }
  return Status();
}

Status AttentionPlan::Impl::AddRequest(std::int64_t index, SequenceId sequence, std::int64_t q_len,
                                       std::int64_t kv_len, const char* function) noexcept {
  if (q_len_ + q_len > params_.max_q_len) {
    return Invalid(function, "q_len = ", q_len_ + q_len,
                   " exceeds max_q_len = ", params_.max_q_len);
  }
  if (kv_len > params_.max_kv_len) {
    return Invalid(function, "kv_len = ", kv_len, " of request ", index,
                   " exceeds max_kv_len = ", params_.max_kv_len);
  }
  if ((params_.causal || params_.window > 0) && q_len > kv_len) {
    return Invalid(function, "q_len = ", q_len, " of request ", index,
                   " exceeds its kv_len = ", kv_len);
  }
  if (q_len == 0) return Status();  // nothing to do, and no place needed
  Request& request = requests_[static_cast<std::size_t>(num_requests_++)];
  request = Request{};
  request.sequence = sequence;
  request.q_begin = q_len_;
  request.q_len = q_len;
  request.kv_len = kv_len;
  request.tiles = CeilDiv(q_len * group(), kAttentionRows);
  q_len_ += q_len;
  return Status();
}

Status AttentionPlan::Impl::Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                                    const std::int64_t* qo_indptr, const char* function) noexcept {
  cache_ = &cache;
  num_requests_ = q_len_ = items_ = merges_ = 0;
  if (qo_indptr != nullptr && qo_indptr[0] != 0) {
    return Invalid(function, "qo_indptr[0] = ", qo_indptr[0], "; expected 0");
  }
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    if (qo_indptr != nullptr && qo_indptr[b + 1] < qo_indptr[b]) {
      return Invalid(function, "qo_indptr[", b + 1, "] = ", qo_indptr[b + 1],
                     " is less than qo_indptr[", b, "] = ", qo_indptr[b]);
    }
    const std::int64_t kv_len = cache.length(sequences[b]);
    if (kv_len < 0) {
      return Invalid(function, "sequences[", b, "] = ", static_cast<std::int32_t>(sequences[b]),
                     " is not a sequence of the cache");
    }
    const std::int64_t q_len = qo_indptr == nullptr ? 1 : qo_indptr[b + 1] - qo_indptr[b];
    Status status = AddRequest(static_cast<std::int64_t>(b), sequences[b], q_len, kv_len, function);
    if (!status.ok()) return status;
  }
  CutItems();
  return Status();
}

Status AttentionPlan::Impl::Prepare(std::int64_t q_len, std::int64_t kv_len, const float* k,
                                    const float* v, const char* function) noexcept {
  cache_ = nullptr;
  k_ = k;
  v_ = v;
  num_requests_ = q_len_ = items_ = merges_ = 0;
  if (q_len < 0) return Invalid(function, "q_len = ", q_len, "; expected 0 or more");
  if (kv_len < 0) return Invalid(function, "kv_len = ", kv_len, "; expected 0 or more");
  if (kv_len > 0 && (k == nullptr || v == nullptr)) {
    return Invalid(function, k == nullptr ? "k" : "v", " = null; expected ", kv_len, " tokens");
  }
  if (Status status = AddRequest(0, SequenceId{}, q_len, kv_len, function); !status.ok()) {
    return status;
  }
  CutItems();
  return Status();
}

void AttentionPlan::Impl::CutItems() noexcept {
  std::int64_t whole_items = 0;
  for (std::int64_t b = 0; b < num_requests_; ++b) {
    whole_items += params_.num_kv_heads * requests_[static_cast<std::size_t>(b)].tiles;
  }
  const bool few = whole_items < kItemsPerThread * params_.threads;
  std::int64_t parts = 0;
  for (std::int64_t b = 0; b < num_requests_; ++b) {
    Request& request = requests_[static_cast<std::size_t>(b)];
    const std::int64_t tiles = params_.num_kv_heads * request.tiles;
    const std::int64_t first_position = request.kv_len - request.q_len;
    request.first_split =
        params_.window > 0
            ? std::max<std::int64_t>(0, first_position - params_.window + 1) / kAttentionSplit
            : 0;
    const std::int64_t splits = CeilDiv(request.kv_len, kAttentionSplit) - request.first_split;
    const std::int64_t floats = params_.num_kv_heads * splits * PartFloats(request.q_len * group());
    request.first_item = items_;
    request.first_merge = merges_;
    request.parts_offset = parts;
    if (few && splits > 1 && floats <= parts_floats_ - parts) {
      request.splits = splits;
      parts += floats;
      items_ += tiles * splits;
      merges_ += tiles;
    } else {
      items_ += tiles;
    }
  }
}

}  // namespace manyhead
