#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "manyhead/kv_cache.h"
#include "tests/attention/attention_config.h"
#include "tests/attention/strided_tensor.h"
#include "tests/support/kv_reference.h"

namespace manyhead::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Whether any query attends to key s for a query head of KV head g: element s * K + g.
std::vector<bool> KeysSeen(const AttentionCase& shape) {
  const std::int64_t K = shape.num_kv_heads, G = shape.num_heads / K;
  std::vector<bool> seen(static_cast<std::size_t>(shape.kv_len * K));
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    for (std::int64_t t = 0; t < shape.q_len; ++t) {
      for (std::int64_t s = 0; s < shape.kv_len; ++s) {
        if (Sees(shape, h, t, s)) seen[s * K + h / G] = true;
      }
    }
  }
  return seen;
}

void PoisonRows(const std::vector<bool>& seen, std::int64_t dim, std::vector<float>& rows_SKD) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) std::fill_n(rows_SKD.begin() + static_cast<std::ptrdiff_t>(i) * dim, dim, kNan);
  }
}

Result<KvCache> MakeCache(const AttentionConfig& config) {
  KvCacheParams params;
  params.layers = {{config.num_kv_heads, config.head_dim, config.head_dim_v}};
  params.k_type = config.k_type;
  params.v_type = config.v_type;
  params.page_size = config.page_size;
  params.max_tokens =
      std::max<std::int64_t>(1, *std::max_element(config.kv_lens.begin(), config.kv_lens.end()));
  params.isa = config.isa;
  const Result<std::int64_t> bytes =
      KvCapacityBytes(params, static_cast<std::int64_t>(config.kv_lens.size()), params.max_tokens);
  if (!bytes.ok()) return bytes.status();
  params.capacity_bytes = *bytes;
  return KvCache::Create(params);
}

Rows RunCache(AttentionPlan& plan, const AttentionConfig& config, const ConfigInputs& inputs) {
  Result<KvCache> cache = MakeCache(config);
  if (!cache.ok()) {
    ADD_FAILURE() << cache.status().message();
    return {};
  }
  std::vector<SequenceId> ids;
  std::vector<std::int64_t> qo_indptr = {0};
  std::vector<float> q_THD;
  for (const RequestInputs& request : inputs.requests) {
    const Result<SequenceId> id = cache->CreateSequence();
    EXPECT_TRUE(id.ok());
    EXPECT_TRUE(cache->Reserve(*id, request.shape.kv_len).ok());
    PackPages(*cache, *id, 0, config.num_kv_heads, request.k_SKD, request.v_SKD, kNan);
    ids.push_back(*id);
    qo_indptr.push_back(qo_indptr.back() + request.shape.q_len);
    q_THD.insert(q_THD.end(), request.q_THD.begin(), request.q_THD.end());
  }
  const bool decode = qo_indptr.back() == static_cast<std::int64_t>(ids.size()) &&
                      *std::max_element(config.q_lens.begin(), config.q_lens.end()) == 1;
  const std::int64_t T = qo_indptr.back(), H = config.num_heads;
  StridedTensor q(KvType::kF32, Layout::kNHD, {1, T, H, config.head_dim});
  StridedTensor out(KvType::kF32, Layout::kNHD, {1, T, H, config.head_dim_v});
  StridedTensor lse(KvType::kF32, Layout::kNHD, {1, T, H, 1});
  q.Set(0, q_THD);
  const Status status =
      plan.Run(*cache, 0, ids, decode && config.seed % 2 == 1 ? nullptr : qo_indptr.data(),
               q.view<const float>().data, out.view<float>().data,
               config.lse ? lse.view<float>().data : nullptr, inputs.logits.view);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.GapsIntact() && lse.GapsIntact());
  return {out.Values(), lse.Values()};
}

Rows RunTensors(AttentionPlan& plan, const AttentionConfig& config, const ConfigInputs& inputs) {
  const auto batch = static_cast<std::int64_t>(inputs.requests.size());
  const std::int64_t T = config.q_lens[0], H = config.num_heads, K = config.num_kv_heads;
  const std::int64_t longest = *std::max_element(config.kv_lens.begin(), config.kv_lens.end());
  const std::int64_t S = longest + config.kv_padding;
  // Even seeds lay each tensor out in another way.
  const auto layout = [&config](int tensor) {
    const bool mixed = config.route == Route::kTensors && config.seed % 2 == 0;
    return static_cast<Layout>((static_cast<int>(config.layout) + (mixed ? tensor : 0)) % 4);
  };
  StridedTensor q(KvType::kF32, layout(0), {batch, T, H, config.head_dim});
  StridedTensor k(config.k_type, layout(1), {batch, S, K, config.head_dim});
  StridedTensor v(config.v_type, layout(2), {batch, S, K, config.head_dim_v});
  StridedTensor out(KvType::kF32, layout(3), {batch, T, H, config.head_dim_v});
  StridedTensor lse(KvType::kF32, layout(4), {batch, T, H, 1});
  for (std::int64_t b = 0; b < batch; ++b) {
    const RequestInputs& request = inputs.requests[b];
    q.Set(b, request.q_THD);
    k.Set(b, StoredRows(config.k_type, request.k_SKD, config.head_dim));
    v.Set(b, StoredRows(config.v_type, request.v_SKD, config.head_dim_v));
  }
  AttentionTensors tensors;
  tensors.batch = batch;
  tensors.q_len = T;
  tensors.kv_len = S;
  const bool all_valid = std::all_of(config.kv_lens.begin(), config.kv_lens.end(),
                                     [S](std::int64_t valid) { return valid == S; });
  if (!all_valid) tensors.kv_lens = config.kv_lens.data();
  if (!config.query_starts.empty()) tensors.query_starts = config.query_starts.data();
  tensors.k_type = config.k_type;
  tensors.v_type = config.v_type;
  tensors.q = q.view<const float>();
  tensors.k = k.const_void_view();
  tensors.v = v.const_void_view();
  tensors.out = out.view<float>();
  if (config.lse) tensors.lse = lse.view<float>();
  tensors.bias = inputs.logits.view;
  const Status status =
      config.route == Route::kTensors
          ? plan.Run(tensors)
          : plan.Run(T, S, tensors.q.data, static_cast<const float*>(tensors.k.data),
                     static_cast<const float*>(tensors.v.data), tensors.out.data, tensors.lse.data);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.GapsIntact() && lse.GapsIntact());
  return {out.Values(), lse.Values()};
}

}  // namespace

Rows RunConfig(const AttentionConfig& config, ConfigInputs& inputs) {
  Result<AttentionPlan> plan = AttentionPlan::Create(ParamsFor(config));
  if (!plan.ok()) {
    ADD_FAILURE() << plan.status().message();
    return {};
  }
  for (RequestInputs& request : inputs.requests) {
    const std::vector<bool> seen = KeysSeen(request.shape);
    PoisonRows(seen, config.head_dim, request.k_SKD);
    PoisonRows(seen, config.head_dim_v, request.v_SKD);
  }
  return config.route == Route::kCache ? RunCache(*plan, config, inputs)
                                       : RunTensors(*plan, config, inputs);
}

}  // namespace manyhead::testing
