#include "manyhead/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "tests/support/isas.h"

namespace manyhead {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

RopeConfig Plain(std::int64_t rotary_dim, double base = 10000) {
  RopeConfig config;
  config.rotary_dim = rotary_dim;
  config.base = base;
  return config;
}

RopeConfig Scaled(std::int64_t rotary_dim, double base, RopeScaling scaling, double factor,
                  std::int64_t original_context = 0) {
  RopeConfig config = Plain(rotary_dim, base);
  config.scaling = scaling;
  config.factor = factor;
  config.original_context = original_context;
  return config;
}

std::vector<double> FrequenciesOf(const RopeConfig& config) {
  const Result<Rope> rope = Rope::Create(config, config.rotary_dim);
  EXPECT_TRUE(rope.ok()) << rope.status().message();
  if (!rope.ok()) return {};
  return {rope->frequencies().begin(), rope->frequencies().end()};
}

/// Distinct numbers of order one.
std::vector<float> Numbers(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i) + 0.3));
  return x;
}

class RopeOn : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(EveryIsa, RopeOn, ::testing::ValuesIn(kEveryIsa), IsaTestName);

// Values of a public report on mixed-up pairings (ggml-org/llama.cpp#3018), computed by hand in
// double.
TEST_P(RopeOn, BothPairingsGiveTheirOwnValues) {
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
    RopeConfig config = Plain(4);
    config.interleaved = c.interleaved;
    std::vector<float> x = {1, 2, 3, 4};
    ASSERT_TRUE(Rope::Create(config, 4, GetParam())->Apply({x.data(), 1, 1}, {{c.position}}).ok());
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(x[i], c.expected[i], 1e-6) << "position " << c.position << " element " << i;
  }
}

/// One head rotated in long double, from the definition.
std::vector<long double> Reference(const std::vector<float>& x, std::int64_t rotary_dim,
                                   long double base, bool interleaved, std::int64_t position) {
  std::vector<long double> out(x.begin(), x.end());
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    const long double angle =
        static_cast<long double>(position) *
        std::pow(base, -2.0L * static_cast<long double>(i) / static_cast<long double>(rotary_dim));
    const std::size_t a = interleaved ? 2 * i : i;
    const std::size_t b = interleaved ? 2 * i + 1 : i + rotary_dim / 2;
    out[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
    out[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
  }
  return out;
}

TEST_P(RopeOn, EveryPositionAndSizeIsAsExactAsTheFirst) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  const std::int64_t sizes[][2] = {{2, 2},    {6, 6},     {64, 64},  {80, 40},
                                   {100, 26}, {128, 128}, {256, 64}, {1024, 1024}};
  for (const auto& [head_dim, rotary_dim] : sizes)
    for (const bool interleaved : {false, true})
      for (const std::int64_t position : {0, 1, 3, 4095, 131071, 1000000}) {
        RopeConfig config = Plain(rotary_dim, 500000);
        config.interleaved = interleaved;
        const std::vector<float> before = Numbers(head_dim);
        std::vector<float> x = before;
        ASSERT_TRUE(
            Rope::Create(config, head_dim, GetParam())->Apply({x.data(), 1, 1}, position).ok());
        const auto expected = Reference(before, rotary_dim, 500000, interleaved, position);
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_NEAR(x[i], static_cast<double>(expected[i]), 2e-7)
              << head_dim << "/" << rotary_dim << " position " << position << " element " << i;
        // Elements beyond the rotated ones must not be changed at all.
        ASSERT_EQ(std::memcmp(x.data() + rotary_dim, before.data() + rotary_dim,
                              static_cast<std::size_t>(head_dim - rotary_dim) * sizeof(float)),
                  0);
      }
}

// cos and sin of 10^6 radians from a table of long digits.
TEST(Rope, AMillionRadians) {
  const Result<Rope> rope = Rope::Create(Plain(128), 128);
  std::vector<float> cosine(64), sine(64);
  rope->Angles(1000000, cosine.data(), sine.data());
  EXPECT_NEAR(cosine[0], 0.93675212753314478, 1e-7);
  EXPECT_NEAR(sine[0], -0.34999350217129295, 1e-7);
}

// Files of the llama family hold each head's rows in the order that turns half-split pairs into
// neighbours: the same dot products either way.
TEST_P(RopeOn, InterleavedIsHalfSplitOfPermutedHeads) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  constexpr std::int64_t kTokens = 5, kHeads = 3, kDim = 36;
  const auto permuted = [](std::int64_t d) {
    return d < kDim / 2 ? 2 * d : 2 * (d - kDim / 2) + 1;
  };
  std::vector<float> split = Numbers(kTokens * kHeads * kDim), paired(split.size());
  for (std::int64_t row = 0; row < kTokens * kHeads; ++row)
    for (std::int64_t d = 0; d < kDim; ++d)
      paired[row * kDim + permuted(d)] = split[row * kDim + d];
  RopeConfig config = Plain(kDim);
  ASSERT_TRUE(
      Rope::Create(config, kDim, GetParam())->Apply({split.data(), kTokens, kHeads}, 7).ok());
  config.interleaved = true;
  ASSERT_TRUE(
      Rope::Create(config, kDim, GetParam())->Apply({paired.data(), kTokens, kHeads}, 7).ok());
  for (std::int64_t row = 0; row < kTokens * kHeads; ++row)
    for (std::int64_t d = 0; d < kDim; ++d)
      EXPECT_NEAR(paired[row * kDim + permuted(d)], split[row * kDim + d], 3e-7);
}

// Heads of a wider row, e.g. queries beside keys, each token at a position of its own.
TEST_P(RopeOn, FollowsStridesAndPositions) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  constexpr std::int64_t kTokens = 3, kHeads = 2, kDim = 6, kHeadStride = 9, kTokenStride = 31;
  const std::vector<std::int64_t> positions = {11, 0, 5};
  const std::vector<float> before = Numbers(kTokens * kTokenStride);
  std::vector<float> x = before;
  const Result<Rope> rope = Rope::Create(Plain(4), kDim, GetParam());
  ASSERT_TRUE(rope->Apply({x.data(), kTokens, kHeads, kTokenStride, kHeadStride}, positions).ok());
  std::vector<double> expected(before.begin(), before.end());
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t at = t * kTokenStride + h * kHeadStride;
      const auto head = Reference({before.begin() + at, before.begin() + at + kDim}, 4, 10000,
                                  false, positions[t]);
      for (std::int64_t d = 0; d < kDim; ++d) expected[at + d] = static_cast<double>(head[d]);
    }
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 2e-7) << i;
}

TEST_P(RopeOn, RotateHeadsTakesCosinesOfTheCaller) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  constexpr std::int64_t kTokens = 4, kHeads = 3, kDim = 20;
  for (const bool interleaved : {false, true}) {
    RopeConfig config = Plain(12);
    config.interleaved = interleaved;
    const Result<Rope> rope = Rope::Create(config, kDim, GetParam());
    std::vector<float> cosine(kTokens * 6), sine(kTokens * 6);
    for (std::int64_t t = 0; t < kTokens; ++t)
      rope->Angles(100 + t, cosine.data() + t * 6, sine.data() + t * 6);
    std::vector<float> x = Numbers(kTokens * kHeads * kDim), expected = x;
    ASSERT_TRUE(rope->Apply({expected.data(), kTokens, kHeads}, 100).ok());
    ASSERT_TRUE(
        RotateHeads({x.data(), kTokens, kHeads}, kDim, 12, interleaved, cosine, sine, GetParam())
            .ok());
    EXPECT_EQ(x, expected);
  }
}

// Values of public reports on YaRN (ggml-org/llama.cpp PR#17945): 0.1 ln s + 1, applied once to
// queries and once to keys.
TEST(RopeYarn, AmplitudeIsOnceTheUsualFactor) {
  const double expected[][2] = {{4, 1.13862944}, {8, 1.20794415}, {40, 1.36888795}};
  for (const auto& [factor, amplitude] : expected) {
    const Result<Rope> rope =
        Rope::Create(Scaled(128, 10000, RopeScaling::kYarn, factor, 4096), 128);
    EXPECT_NEAR(rope->amplitude(), amplitude, 1e-8);
    float cosine[64], sine[64];
    rope->Angles(0, cosine, sine);
    EXPECT_NEAR(cosine[0], amplitude, 1e-6);
    EXPECT_EQ(sine[0], 0);
  }
  const Result<Rope> rope = Rope::Create(Scaled(128, 10000, RopeScaling::kYarn, 4, 4096), 128);
  std::vector<float> q = Numbers(128), k = q;
  double before = 0, after = 0;
  for (std::size_t i = 0; i < q.size(); ++i) before += static_cast<double>(q[i]) * k[i];
  ASSERT_TRUE(rope->Apply({q.data(), 1, 1}, 1000).ok());
  ASSERT_TRUE(rope->Apply({k.data(), 1, 1}, 1000).ok());
  for (std::size_t i = 0; i < q.size(); ++i) after += static_cast<double>(q[i]) * k[i];
  EXPECT_NEAR(after / before, 1.29647699, 1e-6);  // factor of a score between equal positions
}

TEST(RopeYarn, AmplitudeNeverShrinks) {
  RopeConfig config = Scaled(128, 10000, RopeScaling::kYarn, 0.5, 4096);
  EXPECT_EQ(Rope::Create(config, 128)->amplitude(), 1);
  config.factor = 4;
  config.attention_factor = 0.75;
  EXPECT_NEAR(Rope::Create(config, 128)->amplitude(), 0.75 * 1.13862944, 1e-8);
}

// theta 10^4, 4,096 trained tokens: 20.94 and 45.03, rounded outwards to 20 and 46.
TEST(RopeYarn, RampRunsFromPair20To46) {
  const auto plain = FrequenciesOf(Plain(128));
  const auto scaled = FrequenciesOf(Scaled(128, 10000, RopeScaling::kYarn, 4, 4096));
  for (int i = 0; i <= 20; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i]) << i;
  for (int i = 21; i < 46; ++i) {
    const double stretched = (i - 20.0) / (46.0 - 20.0);
    EXPECT_NEAR(scaled[i] / plain[i], stretched / 4 + (1 - stretched), 1e-12) << i;
  }
  for (int i = 46; i < 64; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4) << i;
}

TEST(RopeScaling, LinearDividesEveryFrequencyAndFactorsEachItsOwn) {
  RopeConfig config = Plain(8, 500000);
  const auto plain = FrequenciesOf(config);
  const auto linear = FrequenciesOf(Scaled(8, 500000, RopeScaling::kLinear, 8));
  config.scaling = RopeScaling::kFactors;
  config.factors = {1, 2, 4, 8};
  const auto factors = FrequenciesOf(config);
  for (int i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(linear[i], plain[i] / 8);
    EXPECT_DOUBLE_EQ(factors[i], plain[i] / (1 << i));
  }
}

// The changed base has this purpose: the fastest pair keeps its frequency, the slowest is divided
// by the whole factor, as linear scaling does to all.
TEST(RopeScaling, NtkChangesTheBase) {
  for (const std::int64_t dim : {4, 64, 128}) {
    const auto plain = FrequenciesOf(Plain(dim, 10000));
    const auto ntk = FrequenciesOf(Scaled(dim, 10000, RopeScaling::kNtk, 8));
    const double base =
        10000 * std::pow(8.0, static_cast<double>(dim) / static_cast<double>(dim - 2));
    for (std::size_t i = 0; i < ntk.size(); ++i)
      EXPECT_NEAR(ntk[i] * std::pow(base, 2.0 * static_cast<double>(i) / static_cast<double>(dim)),
                  1, 1e-12)
          << i;
    EXPECT_EQ(ntk.front(), 1);
    EXPECT_NEAR(ntk.back(), plain.back() / 8, 1e-12 * plain.back());
  }
  EXPECT_EQ(FrequenciesOf(Scaled(2, 10000, RopeScaling::kNtk, 8)), std::vector<double>{1});
}

// Llama 3.1 and 3.2: theta 500,000, trained on 8,192 tokens. By wavelength, as its authors write
// it, in long double.
TEST(RopeScaling, Llama3GoesByWavelength) {
  for (const double factor : {8.0, 32.0}) {
    const auto plain = FrequenciesOf(Plain(128, 500000));
    const auto scaled = FrequenciesOf(Scaled(128, 500000, RopeScaling::kLlama3, factor, 8192));
    int kept = 0, divided = 0, between = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const long double frequency = powl(500000.0L, -static_cast<long double>(i) / 64);
      const long double wavelength = 2 * std::numbers::pi_v<long double> / frequency;
      long double expected = frequency;
      if (wavelength > 8192.0L / 1) {
        expected = frequency / factor;
        ++divided;
      } else if (wavelength >= 8192.0L / 4) {
        const long double smooth = (8192 / wavelength - 1) / (4 - 1);
        expected = (1 - smooth) * frequency / factor + smooth * frequency;
        ++between;
      } else {
        ++kept;
      }
      EXPECT_NEAR(scaled[i] / static_cast<double>(expected), 1, 1e-12) << i;
    }
    EXPECT_EQ(kept, 29);
    EXPECT_EQ(between, 6);
    EXPECT_EQ(divided, 29);
  }
}

TEST(RopeScaling, NamesAreReadBack) {
  for (const char* name : {"none", "linear", "ntk", "yarn", "llama3", "factors"}) {
    const std::optional<RopeScaling> scaling = ParseRopeScaling(name);
    ASSERT_TRUE(scaling.has_value()) << name;
    EXPECT_STREQ(RopeScalingName(*scaling), name);
  }
  EXPECT_FALSE(ParseRopeScaling("longrope").has_value());
  EXPECT_FALSE(ParseRopeScaling("").has_value());
}

TEST(Rope, ZeroRotaryDimIsTheWholeHead) {
  EXPECT_EQ(Rope::Create(Plain(0), 96)->config().rotary_dim, 96);
}

std::string ErrorOf(const RopeConfig& config, std::int64_t head_dim) {
  const Result<Rope> rope = Rope::Create(config, head_dim);
  if (rope.ok()) return "no error";
  EXPECT_EQ(rope.status().code(), StatusCode::kInvalidArgument);
  return rope.status().message();
}

TEST(RopeErrors, NameTheParameterAndBothValues) {
  EXPECT_EQ(ErrorOf(Plain(7), 8),
            "Rope::Create: rotary_dim = 7; expected an even number from 2 to head_dim = 8");
  EXPECT_EQ(ErrorOf(Plain(0), 7),
            "Rope::Create: rotary_dim = 7; expected an even number from 2 to head_dim = 7");
  EXPECT_EQ(ErrorOf(Plain(-2), 8),
            "Rope::Create: rotary_dim = -2; expected an even number from 2 to head_dim = 8");
  EXPECT_EQ(ErrorOf(Plain(10), 8), "Rope::Create: rotary_dim = 10 exceeds head_dim = 8");
  EXPECT_EQ(ErrorOf(Plain(8), 1025), "Rope::Create: head_dim = 1025; expected 1..1024");
  EXPECT_EQ(ErrorOf(Plain(8, 1), 8), "Rope::Create: base = 1; expected a finite number above 1");
  EXPECT_EQ(ErrorOf(Plain(8, kNan), 8),
            "Rope::Create: base = nan; expected a finite number above 1");
  for (const RopeScaling scaling :
       {RopeScaling::kLinear, RopeScaling::kNtk, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    EXPECT_EQ(ErrorOf(Scaled(8, 10000, scaling, 0, 64), 8),
              "Rope::Create: factor = 0; expected a finite number above 0");
    EXPECT_EQ(ErrorOf(Scaled(8, 10000, scaling, kInf, 64), 8),
              "Rope::Create: factor = inf; expected a finite number above 0");
    EXPECT_EQ(ErrorOf(Scaled(8, 10000, scaling, kNan, 64), 8),
              "Rope::Create: factor = nan; expected a finite number above 0");
  }
  EXPECT_EQ(ErrorOf(Scaled(8, 10000, RopeScaling::kYarn, 2), 8),
            "Rope::Create: original_context = 0 with scaling = yarn; expected at least 1");
  EXPECT_EQ(ErrorOf(Scaled(8, 10000, RopeScaling::kLlama3, 2, -5), 8),
            "Rope::Create: original_context = -5 with scaling = llama3; expected at least 1");
}

TEST(RopeErrors, OfTheScalingsOwnParameters) {
  RopeConfig config = Scaled(8, 10000, RopeScaling::kYarn, 2, 64);
  config.beta_fast = 0.5;
  EXPECT_EQ(ErrorOf(config, 8), "Rope::Create: beta_fast = 0.5 is below beta_slow = 1");
  config.beta_slow = 0;
  EXPECT_EQ(ErrorOf(config, 8), "Rope::Create: beta_slow = 0; expected a finite number above 0");
  config.attention_factor = -1;
  EXPECT_EQ(ErrorOf(config, 8),
            "Rope::Create: attention_factor = -1; expected a finite number above 0");
  config = Scaled(8, 10000, RopeScaling::kLlama3, 2, 64);
  config.high_freq_factor = 1;
  EXPECT_EQ(ErrorOf(config, 8),
            "Rope::Create: high_freq_factor = 1 is not above low_freq_factor = 1");
  config = Scaled(8, 10000, RopeScaling::kFactors, 1);
  config.factors = {1, 2, 3};
  EXPECT_EQ(ErrorOf(config, 8), "Rope::Create: factors has 3 elements for rotary_dim / 2 = 4");
  config.factors = {1, 2, 3, 0};
  EXPECT_EQ(ErrorOf(config, 8), "Rope::Create: factors[3] = 0; expected a finite number above 0");
  config.scaling = static_cast<RopeScaling>(17);
  EXPECT_EQ(ErrorOf(config, 8), "Rope::Create: scaling = 17; expected a RopeScaling");
}

TEST(RopeErrors, ApplyWritesNothing) {
  const Result<Rope> rope = Rope::Create(Plain(4), 4);
  std::vector<float> x = Numbers(8);
  const std::vector<float> before = x;
  const auto error_of = [&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(x, before);
    return status.message();
  };
  const std::int64_t one[] = {1}, negative[] = {1, -3}, far[] = {1, std::int64_t{1} << 40};
  EXPECT_EQ(error_of(rope->Apply({x.data(), 2, 1}, one)),
            "Rope::Apply: positions has 1 elements; expected 2");
  EXPECT_EQ(error_of(rope->Apply({x.data(), 2, 1}, negative)),
            "Rope::Apply: positions[1] = -3; expected 0..2147483648");
  EXPECT_EQ(error_of(rope->Apply({x.data(), 2, 1}, far)),
            "Rope::Apply: positions[1] = 1099511627776; expected 0..2147483648");
  EXPECT_EQ(error_of(rope->Apply({x.data(), 2, 1}, -1)),
            "Rope::Apply: first_position = -1; expected 0..2147483648");
  EXPECT_EQ(error_of(rope->Apply({x.data(), -2, 1}, 0)),
            "Rope::Apply: tokens = -2; expected 0..2147483648");
  EXPECT_EQ(error_of(rope->Apply({nullptr, 2, 1}, 0)),
            "Rope::Apply: x is null with tokens = 2 and heads = 1");
  const std::vector<float> angles(4, 1);
  EXPECT_EQ(error_of(RotateHeads({x.data(), 2, 1}, 4, 4, false, angles, {})),
            "RotateHeads: sine has 0 elements; expected 4");
  EXPECT_EQ(error_of(RotateHeads({x.data(), 2, 1}, 4, 6, false, angles, angles)),
            "RotateHeads: rotary_dim = 6 exceeds head_dim = 4");
  EXPECT_TRUE(rope->Apply({nullptr, 0, 1}, 0).ok());
}

}  // namespace
}  // namespace manyhead
