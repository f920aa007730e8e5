#include "runtime/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/platform/dispatch.h"
#include "tests/support/isas.h"

namespace manyhead {
namespace {

RopeConfig Plain(std::int64_t dim, double base) {
  RopeConfig config;
  config.rotary_dim = dim;
  config.base = base;
  return config;
}

std::vector<float> Rotate(Isa isa, bool interleaved, std::int64_t position) {
  std::vector<float> x = {1, 2, 3, 4};
  float cosine[2], sine[2];
  RopeAngles(ComputeRopeFrequencies(Plain(4, 10000)), position, cosine, sine);
  const auto& kernels = *KernelsFor(isa).vector;
  (interleaved ? kernels.rope_interleaved : kernels.rope_half_split)(x.data(), cosine, sine, 2);
  return x;
}

class Rope : public ::testing::TestWithParam<Isa> {};

// Values of a public report on mixed-up pairings (ggml-org/llama.cpp#3018), computed by hand in
// double.
TEST_P(Rope, BothPairingsGiveTheirOwnValues) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  const struct {
    bool interleaved;
    std::int64_t position;
    double expected[4];
  } cases[] = {
      {false, 0, {1, 2, 3, 4}},
      {true, 0, {1, 2, 3, 4}},
      {false, 1, {-1.98411065, 1.95990067, 2.46237790, 4.01979967}},
      {false, 3, {-1.41335252, 1.87911807, -2.82885748, 4.05819114}},
      {true, 1, {-1.14263966, 1.92207560, 2.95985067, 4.02979950}},
      {true, 3, {-1.27223251, -1.83886499, 2.87866810, 4.08818664}},
  };
  for (const auto& c : cases) {
    const std::vector<float> x = Rotate(GetParam(), c.interleaved, c.position);
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(x[i], c.expected[i], 1e-6) << "position " << c.position << " element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Rope, ::testing::ValuesIn(kEveryIsa), IsaTestName);

// Values of public reports on YaRN (ggml-org/llama.cpp PR#17945): 0.1 ln s + 1, applied once.
TEST(Yarn, AmplitudeIsOnceTheUsualFactor) {
  RopeConfig config = Plain(128, 10000);
  config.scaling = RopeScaling::kYarn;
  config.original_context = 4096;
  const double expected[][2] = {{4, 1.13862944}, {8, 1.20794415}, {40, 1.36888795}};
  for (const auto& [factor, amplitude] : expected) {
    config.factor = factor;
    EXPECT_NEAR(ComputeRopeFrequencies(config).amplitude, amplitude, 1e-8);
    float cosine[64], sine[64];
    RopeAngles(ComputeRopeFrequencies(config), 0, cosine, sine);
    EXPECT_NEAR(cosine[0], amplitude, 1e-6);
    EXPECT_EQ(sine[0], 0);
  }
}

TEST(Yarn, RampRunsFromPair20To46) {
  RopeConfig config = Plain(128, 10000);
  const auto plain = ComputeRopeFrequencies(config).inverse_wavelengths;
  config.scaling = RopeScaling::kYarn;
  config.original_context = 4096;
  config.factor = 4;
  const auto scaled = ComputeRopeFrequencies(config).inverse_wavelengths;
  for (int i = 0; i <= 20; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i]) << i;
  for (int i = 21; i < 46; ++i) {
    const double stretched = (i - 20.0) / (46.0 - 20.0);
    EXPECT_NEAR(scaled[i] / plain[i], stretched / 4 + (1 - stretched), 1e-12) << i;
  }
  for (int i = 46; i < 64; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4) << i;
}

TEST(RopeScaling, LinearDividesEveryFrequencyAndFactorsEachItsOwn) {
  RopeConfig config = Plain(8, 500000);
  const auto plain = ComputeRopeFrequencies(config).inverse_wavelengths;
  config.scaling = RopeScaling::kLinear;
  config.factor = 8;
  const auto linear = ComputeRopeFrequencies(config);
  config.scaling = RopeScaling::kFactors;
  config.factors = {1, 2, 4, 8};
  const auto factors = ComputeRopeFrequencies(config);
  for (int i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(linear.inverse_wavelengths[i], plain[i] / 8);
    EXPECT_DOUBLE_EQ(factors.inverse_wavelengths[i], plain[i] / (1 << i));
  }
  EXPECT_EQ(linear.amplitude, 1);
}

TEST(RopeAngles, AMillionKeepsTheAccuracyOfF32) {
  const RopeFrequencies frequencies = ComputeRopeFrequencies(Plain(128, 10000));
  std::vector<float> cosine(64), sine(64);
  RopeAngles(frequencies, 1000000, cosine.data(), sine.data());
  // Pair 0 turns by exactly the position: cos and sin of 10^6 radians from a table of long digits.
  EXPECT_NEAR(cosine[0], 0.93675212753314478, 1e-7);
  EXPECT_NEAR(sine[0], -0.34999350217129295, 1e-7);
}

}  // namespace
}  // namespace manyhead
