// Each feature on inputs so small that the right values follow by hand, and what NaN, infinities
// and rows without a key must do under it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

class AttentionValues : public EveryIsa {
 protected:
  /// One head of one dimension; with q = 0 every visible key weighs the same.
  AttentionParams OneDimension(std::int64_t q_len, std::int64_t kv_len) {
    AttentionParams params = ParamsFor(AttentionCase{}, GetParam());
    params.max_q_len = q_len;
    params.max_kv_len = kv_len;
    return params;
  }

  Output Attend(const AttentionParams& params, const std::vector<float>& q,
                const std::vector<float>& k, const std::vector<float>& v,
                const AttentionBias& bias = {}) {
    AttentionPlan plan = MakePlan(params);
    const auto T = static_cast<std::int64_t>(q.size()), S = static_cast<std::int64_t>(k.size());
    GuardedOutput out(T), lse(T);
    AttentionTensors tensors;
    tensors.q_len = T;
    tensors.kv_len = S;
    tensors.q = {q.data(), T, 1, 1};
    tensors.k = {k.data(), S, 1, 1};
    tensors.v = {v.data(), S, 1, 1};
    tensors.out = {out.data(), T, 1, 1};
    tensors.lse = {lse.data(), T, 1, 1};
    tensors.bias = bias;
    const Status status = plan.Run(tensors);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
    return {out.values(), lse.values()};
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionValues, ::testing::ValuesIn(kAllIsas), IsaTestName);

void ExpectValues(const std::vector<float>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-6 * (1 + std::fabs(expected[i]))) << "row " << i;
  }
}

TEST(AlibiSlopes, PowersOfTwo) {
  EXPECT_EQ(AlibiSlopes(8), (std::vector<float>{1.0F / 2, 1.0F / 4, 1.0F / 8, 1.0F / 16, 1.0F / 32,
                                                1.0F / 64, 1.0F / 128, 1.0F / 256}));
  EXPECT_EQ(AlibiSlopes(1), (std::vector<float>{0x1p-8F}));
  EXPECT_EQ(AlibiSlopes(2), (std::vector<float>{0x1p-4F, 0x1p-8F}));
  EXPECT_EQ(AlibiSlopes(4), (std::vector<float>{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F}));
  const std::vector<float> sixteen = AlibiSlopes(16);
  ASSERT_EQ(sixteen.size(), 16U);
  EXPECT_FLOAT_EQ(sixteen[0], 0.70710678F);  // 2^-0.5
  EXPECT_FLOAT_EQ(sixteen[1], 0.5F);
  EXPECT_FLOAT_EQ(sixteen[15], 0x1p-8F);
}

// Those of the power of two below, then the first, third, ... of the power of two above.
TEST(AlibiSlopes, OtherHeadCounts) {
  const std::pair<std::int64_t, std::vector<double>> cases[] = {
      {3, {-4, -8, -2}},
      {6, {-2, -4, -6, -8, -1, -3}},
      {12, {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5}},
  };
  for (const auto& [heads, exponents] : cases) {
    const std::vector<float> slopes = AlibiSlopes(heads);
    ASSERT_EQ(slopes.size(), exponents.size());
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      EXPECT_FLOAT_EQ(slopes[i], static_cast<float>(std::exp2(exponents[i]))) << heads << " " << i;
    }
  }
  const std::vector<float> many = AlibiSlopes(71);
  ASSERT_EQ(many.size(), 71U);
  for (int i = 0; i < 64; ++i)
    EXPECT_FLOAT_EQ(many[i], std::exp2(-0.125F * static_cast<float>(i + 1)));
  for (int i = 0; i < 7; ++i) {
    EXPECT_FLOAT_EQ(many[64 + i], std::exp2(-0.0625F * static_cast<float>(2 * i + 1)));
  }
  EXPECT_TRUE(AlibiSlopes(0).empty());
}

// A slope of ln 2 halves a key's weight per token of distance.
TEST_P(AttentionValues, AlibiFallsWithTheDistance) {
  AttentionParams params = OneDimension(3, 3);
  params.alibi_slopes = {std::log(2.0F)};
  const std::vector<float> zeros(3), v = {1, 2, 4};
  const Output causal = Attend(params, zeros, zeros, v);
  ExpectValues(causal.out_THD, {1, (0.5 + 2) / 1.5, (0.25 + 1 + 4) / 1.75});
  ExpectValues(causal.lse_TH, {0, std::log(1.5), std::log(1.75)});
  params.causal = false;
  ExpectValues(Attend(params, zeros, zeros, v).out_THD,
               {(1 + 1 + 1) / 1.75, (0.5 + 2 + 2) / 2, (0.25 + 1 + 4) / 1.75});
}

TEST_P(AttentionValues, SinkLogitJoinsTheDenominator) {
  AttentionParams params = OneDimension(1, 2);
  const std::vector<float> zero(1), zeros(2), v = {1, 3};
  const Output none = Attend(params, zero, zeros, v);
  params.sink_logits = {0};
  const Output output = Attend(params, zero, zeros, v);
  ExpectValues(output.out_THD, {4.0 / 3});
  ExpectValues(output.lse_TH, {std::log(3.0)});
  params.sink_logits = {-kInf};
  const Output off = Attend(params, zero, zeros, v);
  EXPECT_EQ(off.out_THD, none.out_THD);
  EXPECT_EQ(off.lse_TH, none.lse_TH);
  params.sink_logits = {30};
  const Output large = Attend(params, zero, zeros, v);
  EXPECT_NEAR(large.out_THD[0] / (4 * std::exp(-30.0)), 1, 32e-7);  // (2 + 30) * 1e-7
  EXPECT_FLOAT_EQ(large.lse_TH[0], 30);
  params.sink_logits = {3e38F};
  const Output huge = Attend(params, zero, zeros, v);
  EXPECT_EQ(huge.out_THD[0], 0);
  EXPECT_EQ(huge.lse_TH[0], 3e38F);
  params.sink_logits = {-3e38F};
  EXPECT_EQ(Attend(params, zero, zeros, v).out_THD, none.out_THD);
}

TEST_P(AttentionValues, ARowWithoutAVisibleKeyIsZero) {
  for (const float sink : {-kInf, -1.5F, 7.0F}) {
    AttentionParams params = OneDimension(2, 3);
    params.sink_logits = {sink};
    const std::vector<float> q = {1, 2}, k = {1, 2, 3}, v = {5, 6, 7};
    const std::vector<std::uint8_t> mask(3, 0);
    AttentionBias hidden;
    hidden.mask = {mask.data(), 3, 0, 0, 0};
    const Output masked = Attend(params, q, k, v, hidden);
    EXPECT_EQ(masked.out_THD, std::vector<float>(2, 0));
    EXPECT_EQ(masked.lse_TH, std::vector<float>(2, sink));
    const std::vector<float> bias(3, -kInf);
    hidden = {};
    hidden.bias = {bias.data(), 3, 0, 0, 0};
    const Output biased = Attend(params, q, k, v, hidden);
    EXPECT_EQ(biased.out_THD, std::vector<float>(2, 0));
    EXPECT_EQ(biased.lse_TH, std::vector<float>(2, sink));
    params.causal = false;
    const Output nothing = Attend(params, q, {}, {});
    EXPECT_EQ(nothing.out_THD, std::vector<float>(2, 0));
    EXPECT_EQ(nothing.lse_TH, std::vector<float>(2, sink));
  }
}

TEST_P(AttentionValues, SoftcapBoundsTheLogits) {
  AttentionParams params = OneDimension(1, 2);
  params.logit_softcap = 1;
  // tanh(30) = 1: the weights are e and 1/e over their sum.
  const Output output = Attend(params, {30}, {1, -1}, {1, 0});
  ExpectValues(output.out_THD, {0.88079707797788});
  ExpectValues(output.lse_TH, {std::log(std::exp(1.0) + std::exp(-1.0))});
  // A product that overflows is capped like any other.
  ExpectValues(Attend(params, {1e30F}, {1e30F, -1e30F}, {1, 0}).out_THD, {0.88079707797788});
  // 30 tanh(1) = 22.847824679; beside it 30 tanh(0.9) = 21.488936106.
  params.logit_softcap = 30;
  const double weight = 1 / (1 + std::exp(21.488936106 - 22.847824679));
  ExpectValues(Attend(params, {30}, {1, 0.9F}, {1, 0}).out_THD, {weight});
  // Logits far below the cap hardly change.
  ExpectValues(Attend(params, {0.001F}, {1, -1}, {1, 0}).out_THD, {1 / (1 + std::exp(-0.002))});
}

// The cap comes before the bias: a bias is never capped.
TEST_P(AttentionValues, BiasIsAddedAfterTheSoftcap) {
  AttentionParams params = OneDimension(1, 2);
  params.logit_softcap = 1;
  const std::vector<float> bias = {0, 2};
  AttentionBias added;
  added.bias = {bias.data(), 2, 0, 0, 0};
  // Logits 1 and -1 + 2.
  ExpectValues(Attend(params, {30}, {1, -1}, {1, 0}, added).out_THD, {0.5});
}

TEST_P(AttentionValues, SinkTokensStayVisibleBehindAWindow) {
  AttentionParams params = OneDimension(5, 5);
  params.window = 2;
  params.num_sink_tokens = 1;
  const std::vector<float> zeros(5);
  ExpectValues(Attend(params, zeros, zeros, {10, 1, 2, 3, 4}).out_THD,
               {10, 5.5, 13.0 / 3, 15.0 / 3, 17.0 / 3});
  params.num_sink_tokens = 100;  // more than there are: causal alone
  ExpectValues(Attend(params, zeros, zeros, {10, 1, 2, 3, 4}).out_THD, {10, 5.5, 13.0 / 3, 4, 4});
}

TEST_P(AttentionValues, WindowToBothSides) {
  AttentionParams params = OneDimension(5, 5);
  params.causal = false;
  params.window = 2;
  params.window_right = 1;
  const std::vector<float> zeros(5), v = {1, 2, 3, 4, 5};
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {1.5, 2, 3, 4, 4.5});
  params.window_right = 0;
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {1, 1.5, 2.5, 3.5, 4.5});
  params.window_right.reset();  // the same
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {1, 1.5, 2.5, 3.5, 4.5});
  params.window = 0;
  params.window_right = 2;
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {2, 2.5, 3, 3, 3});
  params.window_right = INT64_MAX;
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {3, 3, 3, 3, 3});
  params.window = INT64_MAX;
  ExpectValues(Attend(params, zeros, zeros, v).out_THD, {3, 3, 3, 3, 3});
}

// A NaN in a key or value that is attended appears in the result, whatever is done to its logit.
TEST_P(AttentionValues, NanInWhatIsAttendedComesOut) {
  const std::vector<float> bias = {0.5F, -0.5F}, nan_bias = {kNan, 0};
  const std::vector<std::uint8_t> mask = {1, 1};
  for (int feature = 0; feature < 5; ++feature) {
    SCOPED_TRACE(feature);
    AttentionParams params = OneDimension(1, 2);
    AttentionBias added;
    if (feature == 1) params.logit_softcap = 2;
    if (feature == 2) params.alibi_slopes = {0.5F};
    if (feature == 3) params.sink_logits = {1};
    if (feature == 4)
      added.bias = {bias.data(), 2, 0, 0, 0}, added.mask = {mask.data(), 2, 0, 0, 0};
    EXPECT_TRUE(std::isnan(Attend(params, {kNan}, {1, 1}, {1, 1}, added).out_THD[0]));
    EXPECT_TRUE(std::isnan(Attend(params, {1}, {kNan, 1}, {1, 1}, added).out_THD[0]));
    EXPECT_TRUE(std::isnan(Attend(params, {1}, {1, kNan}, {1, 1}, added).out_THD[0]));
    EXPECT_TRUE(std::isnan(Attend(params, {1}, {1, 1}, {1, kNan}, added).out_THD[0]));
  }
  AttentionBias added;
  added.bias = {nan_bias.data(), 2, 0, 0, 0};
  EXPECT_TRUE(std::isnan(Attend(OneDimension(1, 2), {1}, {1, 1}, {1, 1}, added).out_THD[0]));
}

// -inf and the lowest number are both in use as "hidden"; the latter hides by weight only.
TEST_P(AttentionValues, LowestFiniteBias) {
  const float lowest = std::numeric_limits<float>::lowest();
  const std::vector<float> some = {0, lowest}, all = {lowest, lowest};
  AttentionBias added;
  added.bias = {some.data(), 2, 0, 0, 0};
  EXPECT_EQ(Attend(OneDimension(1, 2), {0}, {0, 0}, {3, 5}, added).out_THD[0], 3);
  added.bias.data = all.data();
  EXPECT_EQ(Attend(OneDimension(1, 2), {0}, {0, 0}, {3, 5}, added).out_THD[0], 4);
}

}  // namespace
}  // namespace manyhead::testing
