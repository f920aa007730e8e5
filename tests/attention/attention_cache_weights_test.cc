// Softmax weights of rows of a paged cache, as AttentionPlan::Weights shows them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/attention/attention_config.h"
#include "tests/attention/attention_fixture.h"
#include "tests/support/kv_reference.h"

namespace manyhead::testing {
namespace {

using ::testing::HasSubstr;

class AttentionCacheWeights : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionCacheWeights, ::testing::ValuesIn(kAllIsas), IsaTestName);

constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                             KvType::kInt4};

/// Relative error of a weight: that of its logit and of the denominator's, see
/// AttentionResult::out_bound_TH, for |q| <= gain and |k| <= 1.
double RelativeBound(const AttentionCase& shape, double gain) {
  const double u = 0x1p-24, D = static_cast<double>(shape.head_dim);
  double logit = (std::sqrt(D) + 4) * u * std::fabs(shape.scale) * D * gain * shape.k_terms;
  logit += u * (8 * shape.logit_softcap + 8);
  if (!shape.alibi_slopes.empty()) logit += 4 * u * static_cast<double>(shape.kv_len);
  return 2 * logit + (2 * std::sqrt(static_cast<double>(shape.kv_len)) + 30) * u;
}

/// Makes numbers NaN that no query of the group of their KV head sees.
void PoisonUnseen(const AttentionCase& shape, std::int64_t dim, std::vector<float>& rows_SKD) {
  const std::int64_t K = shape.num_kv_heads, G = shape.num_heads / K;
  for (std::int64_t s = 0; s < shape.kv_len; ++s)
    for (std::int64_t k = 0; k < K; ++k) {
      bool seen = false;
      for (std::int64_t h = k * G; h < (k + 1) * G; ++h)
        for (std::int64_t t = 0; t < shape.q_len; ++t) seen = seen || Sees(shape, h, t, s);
      if (!seen) std::fill_n(&rows_SKD[(s * K + k) * dim], dim, kNan);
    }
}

/// Runs over `cache` and compares the weights with the reference of `shape` and `k_SKD`, which are
/// as they are stored; what is masked is not stored.
void CheckWeights(AttentionPlan& plan, const KvCache& cache, SequenceId id,
                  const AttentionCase& shape, const std::vector<float>& q_THD,
                  const std::vector<float>& k_SKD, double gain, const AttentionBias& bias = {}) {
  const std::int64_t T = shape.q_len, H = shape.num_heads, S = shape.kv_len;
  std::vector<float> out(T * H * shape.head_dim_v), lse(T * H);
  const std::int64_t indptr[] = {0, T};
  Status status = plan.Run(cache, 0, {&id, 1}, indptr, q_THD.data(), out.data(), lse.data(), bias);
  ASSERT_TRUE(status.ok()) << status.message();
  GuardedOutput weights(H * T * S);
  status = plan.Weights(cache, 0, id, T, q_THD.data(), lse.data(), weights.data(), bias);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(weights.guards_intact());
  const std::vector<double> expected = ReferenceWeights(shape, LogitStage::kProbs, q_THD, k_SKD);
  const double bound = RelativeBound(shape, gain);
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t t = 0; t < T; ++t) {
      const double sink = shape.sink_logits.empty() ? -HUGE_VAL : double{shape.sink_logits[h]};
      double sum = sink == -HUGE_VAL ? 0 : std::exp(sink - double{lse[t * H + h]});
      bool sees = sum > 0;
      for (std::int64_t s = 0; s < S; ++s) {
        const std::int64_t i = (h * T + t) * S + s;
        ASSERT_NEAR(weights.data()[i], expected[i], expected[i] * bound + 0x1p-126)
            << "h " << h << ", t " << t << ", s " << s;
        sum += double{weights.data()[i]};
        sees = sees || expected[i] > 0;
      }
      ASSERT_NEAR(sum, sees ? 1 : 0, 1e-5) << "h " << h << ", t " << t;
    }
}

void CheckConfiguration(const AttentionConfig& config) {
  SCOPED_TRACE(Describe(config));
  ConfigInputs inputs = MakeInputs(config);
  RequestInputs& request = inputs.requests[0];
  PoisonUnseen(request.shape, config.head_dim, request.k_SKD);
  PoisonUnseen(request.shape, config.head_dim_v, request.v_SKD);
  FilledCache filled = FillCache(request.shape, config.k_type, config.v_type, config.page_size,
                                 {{request.k_SKD, request.v_SKD}}, kNan);
  AttentionPlan plan = MakePlan(ParamsFor(config));
  AttentionCase shape = request.shape;
  if (config.k_type == KvType::kInt4) shape.k_terms = 3;
  CheckWeights(plan, filled.cache, filled.ids[0], shape, request.q_THD,
               StoredRows(config.k_type, request.k_SKD, config.head_dim), double{config.gain},
               inputs.logits.view);
}

TEST_P(AttentionCacheWeights, EveryTypeAndFeature) {
  for (int features = 0; features < 7; ++features) {
    for (const KvType type : kTypes) {
      AttentionConfig config;
      config.isa = GetParam();
      config.threads = features % 3 + 1;
      config.route = Route::kCache;
      config.k_type = config.v_type = type;
      config.q_lens = {features % 2 == 0 ? 1 : 7};
      config.kv_lens = {133};
      config.seed = static_cast<std::uint32_t>(features);
      if (features >= 1) config.softcap = 2, config.gain = 3;
      if (features >= 2) config.alibi = true;
      if (features >= 3) config.sinks = true;
      if (features >= 4) config.window = 40, config.num_sink_tokens = 3;
      if (features >= 5) config.mask = Spread::kHeads, config.bias = Spread::kFull;
      if (features >= 6) config.window = 90, config.num_sink_tokens = 70;  // in a block with it
      CheckConfiguration(config);
    }
  }
}

// Groups that read keys in place, that widen them first, and that take more than a tile.
TEST_P(AttentionCacheWeights, EveryGroupSize) {
  for (const std::int64_t group : {1, 2, 7, 12, 13, 48, 192, 193, 386}) {
    for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      AttentionConfig config;
      config.isa = GetParam();
      config.threads = 2;
      config.route = Route::kCache;
      config.k_type = config.v_type = type;
      config.num_kv_heads = group < 100 ? 2 : 1;
      config.num_heads = config.num_kv_heads * group;
      config.q_lens = {3};
      config.kv_lens = {200};
      config.sinks = true;
      CheckConfiguration(config);
    }
  }
}

TEST_P(AttentionCacheWeights, LongRowsOfLargeLogits) {
  AttentionConfig config;
  config.isa = GetParam();
  config.threads = 2;
  config.route = Route::kCache;
  config.q_lens = {2};
  config.kv_lens = {1100};
  config.gain = 1000;  // lse is rounded to 2^-15: its share of a row's sum shows unless mended
  CheckConfiguration(config);
}

bool PolicyShows(const KvPolicy& policy, std::int64_t i, std::int64_t s) {
  if (policy.kind == KvPolicyKind::kWindow) return s > i - policy.recent;
  if (policy.kind == KvPolicyKind::kSinkRecent) return s < policy.sink || s > i - policy.recent;
  return policy.kind != KvPolicyKind::kOff;
}

// Heads of one layer that keep different tokens, in steps between which they evict, and a gap.
TEST_P(AttentionCacheWeights, HeadsWithPolicies) {
  AttentionCase shape{8, 4, 10, 10, 1, 300};
  shape.scale = 0.5;
  const std::vector<KvHeadParams> heads = {
      {KvType::kF16, KvType::kF16, KvPolicy::SinkRecent(5, 40)},
      {KvType::kInt8, KvType::kF32, KvPolicy::Budget(80, 20)},
      {KvType::kF32, KvType::kInt4, KvPolicy::Off()},
      {KvType::kBf16, KvType::kF16, KvPolicy::Window(70)}};
  KvCacheParams cache_params;
  cache_params.layers = {{4, 10, 10}};
  cache_params.heads = {heads};
  cache_params.page_size = 16;
  cache_params.max_tokens = 300;
  cache_params.capacity_bytes = *KvCapacityBytes(cache_params, 1, 300);
  KvCache cache = *KvCache::Create(cache_params);
  const SequenceId id = *cache.CreateSequence();
  AttentionParams params = ParamsFor(shape, GetParam(), 2);
  params.max_q_len = 100;
  AttentionPlan plan = MakePlan(params);
  const std::vector<float> q = RandomTensor(300 * 80, 1), k = RandomTensor(300 * 40, 2),
                           v = RandomTensor(300 * 40, 3);
  std::vector<float> stored = k;
  for (std::size_t row = 0; row * 10 < k.size(); ++row) {
    const std::vector<float> one(k.begin() + row * 10, k.begin() + (row + 1) * 10);
    std::ranges::copy(StoredRows(heads[row % 4].k_type, one, 10), stored.begin() + row * 10);
  }
  for (const std::int64_t count : {100, 37, 1, 1, 50, 100, 1}) {
    const std::int64_t begin = cache.length(id);
    if (begin == 138) {
      ASSERT_TRUE(cache.Drop(id, 120, 131).ok());
    }
    ASSERT_TRUE(cache.Reserve(id, count).ok());
    ASSERT_TRUE(cache.Write(id, 0, begin, count, &k[begin * 40], &v[begin * 40]).ok());
    shape.q_len = count;
    shape.kv_len = begin + count;
    shape.mask_HTS.clear();
    for (std::int64_t h = 0; h < 8; ++h)
      for (std::int64_t t = begin; t < begin + count; ++t)
        for (std::int64_t s = 0; s < begin + count; ++s)
          shape.mask_HTS.push_back(PolicyShows(heads[h / 2].policy, t, s) &&
                                   cache.Holds(id, 0, h / 2, s));
    CheckWeights(plan, cache, id, shape, {q.begin() + begin * 80, q.begin() + (begin + count) * 80},
                 {stored.begin(), stored.begin() + (begin + count) * 40}, 1);
  }
}

TEST(AttentionCacheWeightsErrors, AreNamed) {
  AttentionCase shape{4, 2, 8, 8, 1, 20};
  FilledCache filled = FillCache(shape, KvType::kF16, KvType::kF16, 16,
                                 {{RandomTensor(320, 1), RandomTensor(320, 2)}}, 0);
  AttentionPlan plan = MakePlan(GoodParams());
  const std::vector<float> q(64), lse(8);
  std::vector<float> weights(4 * 20, kNan);
  const auto message = [&](std::int64_t layer, SequenceId id, std::int64_t q_len,
                           const float* lse_data) {
    return plan.Weights(filled.cache, layer, id, q_len, q.data(), lse_data, weights.data())
        .message();
  };
  EXPECT_THAT(message(1, filled.ids[0], 1, lse.data()),
              HasSubstr("AttentionPlan::Weights: layer = 1; expected 0..0"));
  EXPECT_THAT(message(0, SequenceId{7}, 1, lse.data()),
              HasSubstr("is not a sequence of the cache"));
  EXPECT_THAT(message(0, filled.ids[0], 7, lse.data()), HasSubstr("exceeds max_q_len = 6"));
  EXPECT_THAT(message(0, filled.ids[0], -1, lse.data()), HasSubstr("qo_indptr[1] = -1"));
  EXPECT_THAT(message(0, filled.ids[0], 1, nullptr), HasSubstr("lse = null; expected 1 tokens"));
  EXPECT_TRUE(std::all_of(weights.begin(), weights.end(), [](float w) { return std::isnan(w); }));
  EXPECT_EQ(message(0, filled.ids[0], 0, nullptr), "");
}

}  // namespace
}  // namespace manyhead::testing
