// MergeAttentionStates: keys in two parts equal all keys at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

class AttentionMerge : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionMerge, ::testing::ValuesIn(kAllIsas), IsaTestName);

TEST(MergeAttentionStates, WeighsByTheDenominators) {
  const float out_a[] = {1, 2}, out_b[] = {3, 6};
  const float lse_a = 0, lse_b = std::log(3.0F);
  float out[2], lse = 0;
  ASSERT_TRUE(MergeAttentionStates(1, 2, out_a, &lse_a, out_b, &lse_b, out, &lse).ok());
  EXPECT_FLOAT_EQ(out[0], 2.5F);
  EXPECT_FLOAT_EQ(out[1], 5.0F);
  EXPECT_FLOAT_EQ(lse, std::log(4.0F));
}

TEST(MergeAttentionStates, EmptyStatesChangeNothing) {
  for (const std::int64_t Dv : {1, 3, 16, 17, 128}) {
    const std::vector<float> some = RandomTensor(2 * Dv, 3), zeros(2 * Dv, 0.0F);
    const std::vector<float> lse = {-4.5F, 120.0F}, none = {-kInf, -kInf};
    GuardedOutput out(2 * Dv), out_lse(2);
    const auto merge = [&](const std::vector<float>& a, const std::vector<float>& lse_a,
                           const std::vector<float>& b, const std::vector<float>& lse_b) {
      ASSERT_TRUE(MergeAttentionStates(2, Dv, a.data(), lse_a.data(), b.data(), lse_b.data(),
                                       out.data(), out_lse.data())
                      .ok());
      EXPECT_TRUE(out.guards_intact() && out_lse.guards_intact());
    };
    merge(some, lse, zeros, none);
    EXPECT_EQ(out.values(), some);
    EXPECT_EQ(out_lse.values(), lse);
    merge(zeros, none, some, lse);
    EXPECT_EQ(out.values(), some);
    EXPECT_EQ(out_lse.values(), lse);
    merge(zeros, none, zeros, none);
    EXPECT_EQ(out.values(), zeros);
    EXPECT_EQ(out_lse.values(), none);
  }
}

TEST(MergeAttentionStates, LogarithmsOfAnySize) {
  const float one = 1, five = 5;
  for (const float lse : {3000.0F, -3000.0F, 3e38F, -3e38F}) {
    float out = 0, merged = 0;
    ASSERT_TRUE(MergeAttentionStates(1, 1, &one, &lse, &five, &lse, &out, &merged).ok());
    EXPECT_FLOAT_EQ(out, 3);
    EXPECT_FLOAT_EQ(merged, lse + std::log(2.0F));
  }
  const float low = -1000, high = 1000;
  float out = 0, merged = 0;
  ASSERT_TRUE(MergeAttentionStates(1, 1, &one, &low, &five, &high, &out, &merged).ok());
  EXPECT_EQ(out, 5);
  EXPECT_EQ(merged, 1000);
}

TEST(MergeAttentionStates, NanComesOut) {
  const float one = 1, zero = 0, nan = kNan;
  float out = 0, lse = 0;
  ASSERT_TRUE(MergeAttentionStates(1, 1, &one, &nan, &one, &zero, &out, &lse).ok());
  EXPECT_TRUE(std::isnan(out) && std::isnan(lse));
  ASSERT_TRUE(MergeAttentionStates(1, 1, &one, &zero, &nan, &zero, &out, &lse).ok());
  EXPECT_TRUE(std::isnan(out));
}

TEST(MergeAttentionStates, ResultMayOverwriteEither) {
  constexpr std::int64_t kRows = 7, kDv = 19;
  const std::vector<float> a = RandomTensor(kRows * kDv, 1), b = RandomTensor(kRows * kDv, 2);
  const std::vector<float> lse_a = RandomTensor(kRows, 3), lse_b = RandomTensor(kRows, 4);
  std::vector<float> out(kRows * kDv), lse(kRows);
  ASSERT_TRUE(MergeAttentionStates(kRows, kDv, a.data(), lse_a.data(), b.data(), lse_b.data(),
                                   out.data(), lse.data())
                  .ok());
  std::vector<float> over = a, lse_over = lse_a;
  ASSERT_TRUE(MergeAttentionStates(kRows, kDv, over.data(), lse_over.data(), b.data(), lse_b.data(),
                                   over.data(), lse_over.data())
                  .ok());
  EXPECT_EQ(over, out);
  EXPECT_EQ(lse_over, lse);
  over = b, lse_over = lse_b;
  ASSERT_TRUE(MergeAttentionStates(kRows, kDv, a.data(), lse_a.data(), over.data(), lse_over.data(),
                                   over.data(), lse_over.data())
                  .ok());
  EXPECT_EQ(over, out);
  EXPECT_EQ(lse_over, lse);
}

TEST(MergeAttentionStates, RefusesBadArguments) {
  const std::vector<float> in(8, 1.0F);
  std::vector<float> out(8, -7.0F), lse(2, -7.0F);
  const auto refused = [&](std::int64_t rows, std::int64_t Dv, int null, const char* name) {
    const float* inputs[4];
    for (int i = 0; i < 4; ++i) inputs[i] = null == i ? nullptr : in.data();
    const Status status =
        MergeAttentionStates(rows, Dv, inputs[0], inputs[1], inputs[2], inputs[3],
                             null == 4 ? nullptr : out.data(), null == 5 ? nullptr : lse.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), ::testing::HasSubstr(name));
    for (const float x : out) EXPECT_EQ(x, -7.0F);
    for (const float x : lse) EXPECT_EQ(x, -7.0F);
  };
  refused(-1, 4, -1, "rows = -1");
  refused(2, -4, -1, "head_dim_v = -4");
  const char* names[] = {"out_a = null", "lse_a = null", "out_b = null",
                         "lse_b = null", "out = null",   "lse = null"};
  for (int i = 0; i < 6; ++i) refused(2, 4, i, names[i]);
  EXPECT_TRUE(
      MergeAttentionStates(0, 4, in.data(), in.data(), in.data(), in.data(), out.data(), lse.data())
          .ok());
  EXPECT_EQ(out[0], -7.0F);
}

// Keys split at any place, sink logits in the first part only.
TEST_P(AttentionMerge, AnySplitOfTheKeysEqualsTheWhole) {
  constexpr std::int64_t S = 300;
  AttentionCase shape{6, 2, 24, 19, 5, S, 0.3, false};
  shape.sink_logits = {1, 2, -3, -kInf, 0, 0.5F};
  const std::vector<float> q = RandomTensor(5 * 6 * 24, 1), k = RandomTensor(S * 2 * 24, 2),
                           v = RandomTensor(S * 2 * 19, 3);
  const AttentionResult expected = ReferenceAttention(shape, q, k, v);
  AttentionParams params = ParamsFor(shape, GetParam());
  AttentionPlan without = MakePlan(params);
  params.sink_logits = shape.sink_logits;
  AttentionPlan with = MakePlan(params);
  for (const std::int64_t split : {0, 1, 15, 16, 17, 64, 150, 299, 300}) {
    SCOPED_TRACE(split);
    std::vector<float> a(expected.out_THD.size()), b(a.size()), lse_a(30), lse_b(30);
    ASSERT_TRUE(with.Run(5, split, q.data(), k.data(), v.data(), a.data(), lse_a.data()).ok());
    ASSERT_TRUE(without
                    .Run(5, S - split, q.data(), k.data() + split * 48, v.data() + split * 38,
                         b.data(), lse_b.data())
                    .ok());
    ASSERT_TRUE(MergeAttentionStates(30, 19, a.data(), lse_a.data(), b.data(), lse_b.data(),
                                     a.data(), lse_a.data())
                    .ok());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], expected.out_THD[i], 2 * expected.out_bound_TH[i / 19]) << i;
    }
    for (std::size_t i = 0; i < 30; ++i) {
      ASSERT_NEAR(lse_a[i], expected.lse_TH[i], 2 * expected.lse_bound_TH[i]) << i;
    }
  }
}

}  // namespace
}  // namespace manyhead::testing
