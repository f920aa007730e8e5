#include "runtime/attention/tile_rows.h"

#include <algorithm>

namespace manyhead {

using kernels::kAttentionBlock;

AttentionTileRows::AttentionTileRows(const AttentionSetup& setup, const AttentionBias& bias,
                                     const AttentionRequest& request, std::int64_t head,
                                     std::int64_t index, const kernels::KvHeadView& keys) noexcept
    : setup_(setup), request_(request), begin_(request.kv_len) {
  const AttentionParams& params = setup.params;
  const std::int64_t group = setup.group(), first = index * request.tile_rows;
  rows_ = std::min(request.tile_rows, request.q_len * group - first);
  for (std::int64_t r = 0; r < rows_; ++r) {
    query_[r] = (first + r) / group;
    head_[r] = head * group + (first + r) % group;
    position_[r] = request.position + query_[r];
    const KeySpan seen = setup.partition.KeysSeen(position_[r], request.kv_len);
    first_key_[r] = policy_first_key_[r] = seen.begin;
    end_key_[r] = seen.end;
    end_ = std::max(end_, seen.end);
  }
  sinks_ = rules_.sink_tokens = params.num_sink_tokens;
  if (keys.recent != kernels::kSeesAll) ApplyPolicy(keys);
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t seen = std::max(first_key_[r], policy_first_key_[r]);
    if (seen < end_key_[r]) begin_ = std::min(begin_, seen);
  }
  sinks_ = std::min(sinks_, end_);
  // A block is visited once: sink tokens in the first block of the window are handled with it.
  if (sinks_ > 0 && (sinks_ - 1) / kAttentionBlock >= begin_ / kAttentionBlock) begin_ = 0;
  if (begin_ == 0) sinks_ = 0;

  rules_.softcap = params.logit_softcap;
  if (bias.bias.data != nullptr) {
    Locate(bias.bias, bias_);
    rules_.bias = bias_;
  }
  if (bias.mask.data != nullptr) {
    Locate(bias.mask, mask_);
    rules_.mask = mask_;
  }
  if (!params.alibi_slopes.empty()) {
    for (std::int64_t r = 0; r < rows_; ++r) slope_[r] = params.alibi_slopes[head_[r]];
    rules_.slope = slope_;
    rules_.position = position_;
  }
}

void AttentionTileRows::ApplyPolicy(const kernels::KvHeadView& keys) noexcept {
  const std::int64_t plan_sinks = rules_.sink_tokens;
  for (std::int64_t r = 0; r < rows_; ++r) {
    policy_first_key_[r] = std::max<std::int64_t>(0, position_[r] - keys.recent + 1);
  }
  if (setup_.params.window == 0 || (plan_sinks == 0 && keys.sink == 0)) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      first_key_[r] = std::max(first_key_[r], policy_first_key_[r]);
    }
    sinks_ = rules_.sink_tokens = keys.sink;
    return;
  }
  // A sink token of both rules is always seen; a token that is a sink of only one rule, the one
  // with the later start, is seen while the other rule's window reaches it.
  sinks_ = 0;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const bool plan_first = first_key_[r] <= policy_first_key_[r];
    const std::int64_t sinks = plan_first ? keys.sink : plan_sinks;
    const std::int64_t first = plan_first ? first_key_[r] : policy_first_key_[r];
    sinks_ = std::max(sinks_, first < sinks ? sinks : std::min(plan_sinks, keys.sink));
  }
  rules_.policy_first_key = policy_first_key_;
  rules_.policy_sinks = keys.sink;
}

KeySpan AttentionTileRows::BlockFrom(std::int64_t from) const noexcept {
  const std::int64_t next = from / kAttentionBlock * kAttentionBlock + kAttentionBlock;
  if (from < sinks_) return {from, std::min(sinks_, next)};
  if (from < begin_) return BlockFrom(begin_);
  if (from >= end_) return {end_, end_};
  return {from, std::min(end_, next)};
}

template <class T>
void AttentionTileRows::Locate(const TensorView<T>& view, T** pointers) const noexcept {
  T* base = view.data + request_.index * view.batch_stride;
  for (std::int64_t r = 0; r < rows_; ++r) {
    pointers[r] =
        base + (request_.q_begin + query_[r]) * view.token_stride + head_[r] * view.head_stride;
  }
}

template <class T>
void AttentionTileRows::Locate(const LogitTensor<T>& tensor, const T** pointers) const noexcept {
  const T* base = tensor.data + request_.index * tensor.batch_stride;
  for (std::int64_t r = 0; r < rows_; ++r) {
    pointers[r] = base + query_[r] * tensor.query_stride + head_[r] * tensor.head_stride;
  }
}

void AttentionTileRows::PackQueries(const TensorView<const float>& q,
                                    float* packed) const noexcept {
  const float* rows[kMax];
  Locate(q, rows);
  setup_.kernels->pack_queries(rows, rows_, setup_.params.head_dim, setup_.params.softmax_scale,
                               packed);
}

void AttentionTileRows::PrefetchEnds(const TensorView<const float>& q, const TensorView<float>& out,
                                     KeySpan block,
                                     kernels::AttentionPrefetch& prefetch) const noexcept {
  constexpr std::int64_t kBlocks = 8;
  prefetch.first = prefetch.count = 0;
  const std::int64_t part = (end_ - block.end) / kAttentionBlock;
  if (part >= kBlocks) return;
  const auto add = [&prefetch](const float* from, std::int64_t floats) {
    const char* begin = reinterpret_cast<const char*>(from);
    prefetch.run[prefetch.count++] = {begin,
                                      begin + floats * static_cast<std::int64_t>(sizeof(float))};
  };
  const AttentionParams& params = setup_.params;
  const std::int64_t back = request_.tile_rows / setup_.group() * params.threads;
  float* out_rows[kMax];
  const float* q_rows[kMax];
  Locate(out, out_rows);
  Locate(q, q_rows);
  for (std::int64_t r = rows_ * part / kBlocks; r < rows_ * (part + 1) / kBlocks; ++r) {
    add(out_rows[r], params.head_dim_v);
    if (query_[r] >= back) add(q_rows[r] - back * q.token_stride, params.head_dim);
  }
}

kernels::AttentionTile AttentionTileRows::KernelTile(
    const float* packed, float* probs, const kernels::AttentionState& state) const noexcept {
  kernels::AttentionTile tile;
  tile.rows = rows_;
  tile.head_dim = setup_.params.head_dim;
  tile.v_row = setup_.v_row;
  tile.q = packed;
  tile.first_key = first_key_;
  tile.end_key = end_key_;
  tile.rules = rules_;
  tile.probs = probs;
  tile.state = state;
  return tile;
}

void AttentionTileRows::Finish(const TensorView<float>& out, const TensorView<float>& lse,
                               const kernels::AttentionState& state,
                               float* row_lse) const noexcept {
  const AttentionParams& params = setup_.params;
  float *out_rows[kMax], *lse_rows[kMax], sinks[kMax];
  Locate(out, out_rows);
  for (std::int64_t r = 0; row_lse != nullptr && r < rows_; ++r) lse_rows[r] = row_lse + r;
  if (lse.data != nullptr) Locate(lse, lse_rows);
  const bool has_sinks = !params.sink_logits.empty();
  if (has_sinks) {
    for (std::int64_t r = 0; r < rows_; ++r) sinks[r] = params.sink_logits[head_[r]];
  }
  setup_.kernels->finish(state, rows_, params.head_dim_v, setup_.v_row, has_sinks ? sinks : nullptr,
                         out_rows, lse.data != nullptr || row_lse != nullptr ? lse_rows : nullptr);
  if (lse.data == nullptr || row_lse == nullptr) return;
  for (std::int64_t r = 0; r < rows_; ++r) row_lse[r] = *lse_rows[r];
}

}  // namespace manyhead
