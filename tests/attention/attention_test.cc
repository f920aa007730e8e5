#include "manyhead/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

class AttentionConformance : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionConformance, ::testing::ValuesIn(kAllIsas), IsaTestName);

struct Inputs {
  std::vector<float> q_THD, k_SKD, v_SKD;
};

Inputs RandomInputs(const AttentionCase& shape, KvType k_type, KvType v_type) {
  Inputs inputs;
  inputs.q_THD = RandomTensor(shape.q_len * shape.num_heads * shape.head_dim, 1);
  inputs.k_SKD = RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim, 2);
  inputs.v_SKD = RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim_v, 3);
  for (float& x : inputs.k_SKD) x = RoundTo(k_type, x);
  for (float& x : inputs.v_SKD) x = RoundTo(v_type, x);
  return inputs;
}

std::string Describe(const AttentionCase& c) {
  std::string text = "H";
  text.append(std::to_string(c.num_heads)).append(" K").append(std::to_string(c.num_kv_heads));
  text.append(" D").append(std::to_string(c.head_dim));
  text.append(" Dv").append(std::to_string(c.head_dim_v));
  text.append(" T").append(std::to_string(c.q_len)).append(" S").append(std::to_string(c.kv_len));
  text.append(c.causal ? " causal" : "").append(" W").append(std::to_string(c.window));
  return text;
}

/// The case over plain tensors where the types are f32, and over pages whose unused slots and lanes
/// hold NaN, then infinity.
void CheckCase(const AttentionCase& shape, Isa isa, KvType k_type = KvType::kF32,
               KvType v_type = KvType::kF32, std::int64_t page_size = 32, int threads = 1) {
  SCOPED_TRACE(Describe(shape).append(" ").append(KvTypeName(k_type)).append(KvTypeName(v_type)));
  const Inputs inputs = RandomInputs(shape, k_type, v_type);
  const AttentionResult expected =
      ReferenceAttention(shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
  const double tolerance = AttentionTolerance(shape, 1, 1, 1);
  AttentionPlan plan = MakePlan(ParamsFor(shape, isa, threads));
  if (k_type == KvType::kF32 && v_type == KvType::kF32) {
    SCOPED_TRACE("tensors");
    const Output output = RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
    ExpectNear(output, expected, tolerance, tolerance + 1e-6);
  }
  if (shape.kv_len == 0) return;
  for (const float poison : {kNan, kInf}) {
    SCOPED_TRACE(poison);
    const FilledCache filled =
        FillCache(shape, k_type, v_type, page_size, {{inputs.k_SKD, inputs.v_SKD}}, poison);
    const Output output = RunCache(plan, filled, {0, shape.q_len}, inputs.q_THD);
    ExpectNear(output, expected, tolerance, tolerance + 1e-6);
  }
}

AttentionCase Case(std::int64_t H, std::int64_t K, std::int64_t D, std::int64_t T, std::int64_t S,
                   bool causal = true, std::int64_t window = 0, std::int64_t Dv = 0) {
  const double scale =
      static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(D))));
  return {H, K, D, Dv == 0 ? D : Dv, T, S, scale, causal, window};
}

TEST_P(AttentionConformance, LengthsAroundLanesTilesAndSplits) {
  for (const std::int64_t S :
       {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 511, 512, 513, 1025, 1031}) {
    CheckCase(Case(4, 2, 20, 1, S), GetParam());
    CheckCase(Case(4, 2, 20, S, S), GetParam());
    if (S > 5) CheckCase(Case(4, 2, 20, 5, S), GetParam());
    if (S > 5) CheckCase(Case(4, 2, 20, 5, S, false), GetParam());
  }
}

TEST_P(AttentionConformance, EveryPairOfTypes) {
  for (const KvType k : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    for (const KvType v : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      CheckCase(Case(6, 2, 33, 1, 150), GetParam(), k, v);
      CheckCase(Case(6, 2, 33, 70, 150), GetParam(), k, v);
      CheckCase(Case(14, 1, 16, 3, 80), GetParam(), k, v, 16);
    }
  }
}

TEST_P(AttentionConformance, EveryRowCountOfATile) {
  for (std::int64_t G = 1; G <= 50; ++G) {
    CheckCase(Case(G, 1, 19, 1, 37), GetParam(), KvType::kF16, KvType::kBf16);
  }
}

TEST_P(AttentionConformance, HeadSizesUpTo1024) {
  for (const std::int64_t D : {1, 2, 5, 127, 129, 257, 576, 1000, 1024}) {
    CheckCase(Case(2, 1, D, 2, 35), GetParam());
    CheckCase(Case(2, 1, D, 2, 35), GetParam(), KvType::kF16, KvType::kF16);
  }
}

TEST_P(AttentionConformance, ValueHeadsOfAnotherSize) {
  for (const std::int64_t Dv : {1, 7, 16, 64, 192, 1024}) {
    CheckCase(Case(4, 2, 48, 1, 70, true, 0, Dv), GetParam());
    CheckCase(Case(4, 2, 48, 40, 70, true, 0, Dv), GetParam(), KvType::kF32, KvType::kF16);
    CheckCase(Case(4, 2, 48, 40, 70, true, 0, Dv), GetParam());
  }
}

TEST_P(AttentionConformance, Windows) {
  for (const std::int64_t W : {1, 2, 15, 16, 17, 64, 65, 600}) {
    CheckCase(Case(4, 2, 12, 1, 700, true, W), GetParam(), KvType::kF32, KvType::kF32, 48);
    CheckCase(Case(4, 2, 12, 90, 700, true, W), GetParam(), KvType::kF32, KvType::kF32, 80);
    CheckCase(Case(4, 2, 12, 90, 90, false, W), GetParam());
  }
}

TEST_P(AttentionConformance, SplitKeysOnSeveralThreads) {
  CheckCase(Case(4, 1, 24, 1, 2100), GetParam(), KvType::kF16, KvType::kF16, 64, 3);
  CheckCase(Case(4, 2, 24, 3, 2100, true, 700), GetParam(), KvType::kF32, KvType::kF32, 64, 3);
  CheckCase(Case(100, 1, 8, 1, 1100), GetParam(), KvType::kF32, KvType::kF32, 64, 3);
}

TEST_P(AttentionConformance, ExplicitScale) {
  AttentionCase shape = Case(2, 1, 16, 3, 40);
  for (const double scale : {0.125, -0.5, 3.0}) {
    shape.scale = scale;
    CheckCase(shape, GetParam());
  }
}

// Cross attention: more queries than keys, and no key at all.
TEST_P(AttentionConformance, BidirectionalWithAnyLengths) {
  CheckCase(Case(2, 2, 8, 30, 7, false), GetParam());
  CheckCase(Case(2, 2, 8, 3, 0, false), GetParam());
}

// p = e^x / (1 + e^x) shows the exponential's relative error, but for two roundings. It may grow
// with |x|, so that no probability is off by more than 3e-7 of the largest.
TEST_P(AttentionConformance, ExponentialIsWithin2e7OfTheLargest) {
  constexpr std::int64_t kRows = 20011;
  AttentionCase shape{1, 1, 1, 1, kRows, 2, 1.0, false, 0};
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  std::vector<float> x(kRows);
  for (std::int64_t i = 0; i < kRows; ++i) {
    x[i] = -86.5F * static_cast<float>(i) / static_cast<float>(kRows);
  }
  const Output output = RunTensors(plan, shape, x, {0.0F, 1.0F}, {0.0F, 1.0F});
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double e = std::exp(double{x[i]}), expected = e / (1 + e);
    ASSERT_NEAR(output.out_THD[i] / expected, 1, (2 - x[i]) * 1e-7 + 0x1p-23) << "e^" << x[i];
  }
}

TEST_P(AttentionConformance, ExponentialOfVeryNegativeNumbersIsZero) {
  AttentionCase shape{1, 1, 1, 1, 4, 2, 1.0, false, 0};
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const Output output =
      RunTensors(plan, shape, {-88.1F, -1000, -3e38F, -kInf}, {0.0F, 1.0F}, {0.0F, 1.0F});
  // 2^-127 = e^-88.03 is the most that no longer counts. The last row's first logit is
  // -inf * 0 = NaN, which an attended key hands on.
  EXPECT_EQ(output.out_THD[0], 0.0F);
  EXPECT_EQ(output.out_THD[1], 0.0F);
  EXPECT_EQ(output.out_THD[2], 0.0F);
  EXPECT_TRUE(std::isnan(output.out_THD[3]));
}

}  // namespace
}  // namespace manyhead::testing
