// Stages of the logits, as AttentionPlan::Weights shows them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/attention/attention_config.h"
#include "tests/attention/attention_fixture.h"
#include "tests/attention/strided_tensor.h"

namespace manyhead::testing {
namespace {

class AttentionWeights : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionWeights, ::testing::ValuesIn(kAllIsas), IsaTestName);

constexpr LogitStage kStages[] = {LogitStage::kScores, LogitStage::kCapped, LogitStage::kBiased,
                                  LogitStage::kProbs};

/// Returns the largest error of a stage in f32 for |q| <= gain, |k| <= 1: the logit as in
/// AttentionResult::out_bound_TH, and a probability's share of it.
double Bound(const AttentionConfig& config, LogitStage stage, double expected) {
  const double u = 0x1p-24, D = static_cast<double>(config.head_dim);
  const double scale = config.scale != 0 ? std::fabs(config.scale) : 1 / std::sqrt(D);
  double logit = (std::sqrt(D) + 4) * u * scale * D * config.gain;
  if (config.softcap > 0 && stage != LogitStage::kScores) logit += 8 * u * config.softcap;
  if (stage == LogitStage::kScores || stage == LogitStage::kCapped) return logit;
  if (config.bias != Spread::kNone) logit += u * (config.softcap + 4);
  if (config.alibi) logit += 4 * u * static_cast<double>(config.kv_lens[0]);
  if (stage == LogitStage::kBiased) return logit + 2 * u * std::fabs(expected);
  const double S = static_cast<double>(config.kv_lens[0] + config.kv_padding);
  return expected * (2 * logit + (std::sqrt(S) + 20) * u) + 0x1p-126;
}

struct Tensors {
  StridedTensor q, k, v, out, lse;
  AttentionTensors view;
};

/// All of K and V hold numbers here, also those that are hidden or beyond the valid lengths.
Tensors MakeTensors(const AttentionConfig& config, ConfigInputs& inputs) {
  const auto batch = static_cast<std::int64_t>(config.q_lens.size());
  const std::int64_t T = config.q_lens[0], H = config.num_heads, K = config.num_kv_heads;
  const std::int64_t S = config.kv_lens[0] + config.kv_padding;
  Tensors tensors{{KvType::kF32, config.layout, {batch, T, H, config.head_dim}},
                  {config.k_type, config.layout, {batch, S, K, config.head_dim}},
                  {config.v_type, config.layout, {batch, S, K, config.head_dim_v}},
                  {KvType::kF32, config.layout, {batch, T, H, config.head_dim_v}},
                  {KvType::kF32, config.layout, {batch, T, H, 1}},
                  {}};
  for (std::int64_t b = 0; b < batch; ++b) {
    RequestInputs& request = inputs.requests[b];
    request.k_SKD = RandomTensor(S * K * config.head_dim, static_cast<std::uint32_t>(b + 77));
    for (float& x : request.k_SKD) x = RoundTo(config.k_type, x);
    tensors.q.Set(b, request.q_THD);
    tensors.k.Set(b, request.k_SKD);
    tensors.v.Set(b, RandomTensor(S * K * config.head_dim_v, 5));
  }
  AttentionTensors& view = tensors.view;
  view.batch = batch;
  view.q_len = T;
  view.kv_len = S;
  view.kv_lens = config.kv_lens.data();
  if (!config.query_starts.empty()) view.query_starts = config.query_starts.data();
  view.k_type = config.k_type;
  view.v_type = config.v_type;
  view.q = tensors.q.view<const float>();
  view.k = tensors.k.const_void_view();
  view.v = tensors.v.const_void_view();
  view.out = tensors.out.view<float>();
  view.lse = tensors.lse.view<float>();
  view.bias = inputs.logits.view;
  return tensors;
}

/// [H, T, S] of one request: hidden keys and those beyond the valid length included.
std::vector<double> Expected(const RequestInputs& request, LogitStage stage, std::int64_t S) {
  AttentionCase shape = request.shape;
  const std::int64_t valid = shape.kv_len;
  if (stage == LogitStage::kScores || stage == LogitStage::kCapped) {
    shape.kv_len = S;
    shape.bias_HTS.clear();
    shape.mask_HTS.clear();
    return ReferenceWeights(shape, stage, request.q_THD, request.k_SKD);
  }
  const std::vector<double> seen = ReferenceWeights(shape, stage, request.q_THD, request.k_SKD);
  std::vector<double> all;
  for (std::size_t i = 0; i < seen.size(); i += static_cast<std::size_t>(valid)) {
    all.insert(all.end(), &seen[i], &seen[i] + valid);
    all.insert(all.end(), static_cast<std::size_t>(S - valid),
               stage == LogitStage::kProbs ? 0.0 : double{-kInf});
  }
  return all;
}

void CheckStages(const AttentionConfig& config) {
  SCOPED_TRACE(Describe(config));
  ConfigInputs inputs = MakeInputs(config);
  Tensors tensors = MakeTensors(config, inputs);
  AttentionPlan plan = MakePlan(ParamsFor(config));
  const Status run = plan.Run(tensors.view);
  ASSERT_TRUE(run.ok()) << run.message();
  const std::int64_t S = tensors.view.kv_len;
  const std::int64_t size = config.num_heads * config.q_lens[0] * S;
  for (const LogitStage stage : kStages) {
    GuardedOutput weights(size * tensors.view.batch);
    const Status status = plan.Weights(tensors.view, stage, weights.data());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(weights.guards_intact());
    for (std::int64_t b = 0; b < tensors.view.batch; ++b) {
      const std::vector<double> expected = Expected(inputs.requests[b], stage, S);
      for (std::int64_t i = 0; i < size; ++i) {
        const float actual = weights.data()[b * size + i];
        const double right = expected[i];
        ASSERT_TRUE(actual == right || std::fabs(actual - right) <= Bound(config, stage, right))
            << "stage " << static_cast<int>(stage) << ", request " << b << ", h "
            << i / S / config.q_lens[0] << ", t " << i / S % config.q_lens[0] << ", s " << i % S
            << ": " << actual << ", expected " << right;
      }
    }
  }
}

TEST_P(AttentionWeights, EveryStageMatchesTheReference) {
  for (int features = 0; features < 6; ++features) {
    for (const std::int64_t T : {1, 7}) {
      for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
        AttentionConfig config;
        config.isa = GetParam();
        config.threads = features % 3 + 1;
        config.q_lens = {T, T};
        config.kv_lens = {67, 30};
        config.kv_padding = features;
        config.k_type = type;
        config.causal = features % 2 == 0;
        config.seed = T == 1 ? 1 : 2;  // rows of bias and mask longer than the keys, and not
        if (features >= 1) config.softcap = 2, config.gain = 3;
        if (features >= 2) config.bias = Spread::kFull;
        if (features >= 3) config.mask = Spread::kHeads, config.alibi = true;
        if (features >= 4) config.sinks = true, config.layout = Layout::kHND;
        if (features >= 5) config.window = 12, config.query_starts = {3, 40};
        CheckStages(config);
      }
    }
  }
}

TEST_P(AttentionWeights, LongRows) {
  AttentionConfig config;
  config.isa = GetParam();
  config.threads = 2;
  config.q_lens = {3};
  config.kv_lens = {1100};
  config.softcap = 2;
  config.sinks = true;
  CheckStages(config);
}

// NaN in a key that is hidden shows in the raw scores only.
TEST_P(AttentionWeights, NanInAHiddenKey) {
  const std::vector<float> q = {1}, k = {1, kNan, 1}, v = {1, kNan, 3};
  const std::vector<std::uint8_t> mask = {1, 0, 1};
  float out = 0, lse = 0, weights[3];
  AttentionTensors tensors;
  tensors.q_len = 1;
  tensors.kv_len = 3;
  tensors.q = {q.data(), 1, 1, 1};
  tensors.k = {k.data(), 3, 1, 1};
  tensors.v = {v.data(), 3, 1, 1};
  tensors.out = {&out, 1, 1, 1};
  tensors.lse = {&lse, 1, 1, 1};
  tensors.bias.mask = {mask.data(), 3, 0, 0, 0};
  AttentionPlan plan = MakePlan(ParamsFor(AttentionCase{1, 1, 1, 1, 1, 3}, GetParam()));
  ASSERT_TRUE(plan.Run(tensors).ok());
  EXPECT_EQ(out, 2);
  ASSERT_TRUE(plan.Weights(tensors, LogitStage::kScores, weights).ok());
  EXPECT_TRUE(weights[0] == 1 && std::isnan(weights[1]) && weights[2] == 1);
  ASSERT_TRUE(plan.Weights(tensors, LogitStage::kBiased, weights).ok());
  EXPECT_THAT(weights, ::testing::ElementsAre(1, -kInf, 1));
  ASSERT_TRUE(plan.Weights(tensors, LogitStage::kProbs, weights).ok());
  EXPECT_THAT(weights,
              ::testing::ElementsAre(::testing::FloatEq(0.5F), 0, ::testing::FloatEq(0.5F)));
}

}  // namespace
}  // namespace manyhead::testing
