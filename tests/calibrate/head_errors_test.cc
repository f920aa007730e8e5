#include "runtime/calibrate/head_errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

/// Tests the errors of types and policies in a head's attention against plain loops in double.

namespace manyhead {
namespace {

constexpr std::int64_t kTokens = 300;
constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDim = 20, kDimV = 12;

ModelConfig Config(std::int64_t window) {
  ModelConfig config;
  for (int i = 0; i < 2; ++i)
    config.layers.push_back({kHeads, kKvHeads, kDim, kDimV, 1, window, 0});
  return config;
}

std::vector<float> Random(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i)
    values.push_back((static_cast<float>(random() % 4001) - 2000) / 1000);
  return values;
}

/// Two layers of keys and values and their queries; layer 1 is looked at.
struct Text {
  ModelConfig config;
  std::vector<float> k = Random(kTokens * kKvHeads * kDim, 1);
  std::vector<float> v = Random(kTokens * kKvHeads * kDimV, 2);
  std::vector<float> q = Random(kTokens * kHeads * kDim, 3);
  QuerySample sample;

  explicit Text(std::int64_t window = 0)
      : config(Config(window)), sample(QuerySample::Make(config, kTokens, 16)) {}

  SequenceCache Store() {
    KvCacheParams params;
    params.layers.assign(2, {kKvHeads, kDim, kDimV});
    params.k_type = params.v_type = KvType::kF32;
    params.max_tokens = kTokens;
    SequenceCache cache = *CreateSequenceCache(params, 0);
    EXPECT_TRUE(cache.cache.Reserve(cache.sequence, kTokens).ok());
    for (int layer = 0; layer < 2; ++layer)
      EXPECT_TRUE(cache.cache.Write(cache.sequence, layer, 0, kTokens, k.data(), v.data()).ok());
    // In steps, as a decoder gives them.
    for (std::int64_t begin = 0; begin < kTokens; begin += 70)
      sample.Take(1, begin, std::min<std::int64_t>(70, kTokens - begin),
                  q.data() + begin * kHeads * kDim);
    return cache;
  }

  std::vector<HeadErrors> Measure(const std::vector<KvPolicy>& policies) {
    const SequenceCache cache = Store();
    Result<std::vector<HeadErrors>> errors =
        MeasureHeadErrors(config, cache, 1, sample, policies,
                          {.max_tokens = kTokens, .threads = 2, .isa = *SelectIsa()});
    EXPECT_TRUE(errors.ok()) << errors.status().message();
    return *std::move(errors);
  }

  using Sees = std::function<bool(std::int64_t query, std::int64_t key)>;
  /// [H * Dv] of the query at `position`.
  std::vector<double> Attend(std::int64_t position, const std::vector<float>& keys,
                             const std::vector<float>& values, const Sees& sees) const {
    std::vector<double> out(kHeads * kDimV);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t kv = h / (kHeads / kKvHeads);
      double denominator = 0;
      for (std::int64_t s = 0; s <= position; ++s) {
        const std::int64_t window = config.layers[1].window;
        if (!sees(position, s) || (window > 0 && s <= position - window)) continue;
        double dot = 0;
        for (std::int64_t d = 0; d < kDim; ++d)
          dot += double{q[(position * kHeads + h) * kDim + d]} *
                 double{keys[(s * kKvHeads + kv) * kDim + d]};
        const double weight = std::exp(dot / std::sqrt(double{kDim}));
        denominator += weight;
        for (std::int64_t d = 0; d < kDimV; ++d)
          out[h * kDimV + d] += weight * double{values[(s * kKvHeads + kv) * kDimV + d]};
      }
      for (std::int64_t d = 0; d < kDimV; ++d)
        if (denominator > 0) out[h * kDimV + d] /= denominator;
    }
    return out;
  }

  /// Returns the errors, [KV head].
  std::vector<double> Error(const std::vector<float>& keys, const std::vector<float>& values,
                            const Sees& sees) const {
    std::vector<double> change(kKvHeads), whole(kKvHeads), errors;
    for (const std::int64_t position : sample.positions) {
      const auto exact = Attend(position, k, v, [](auto, auto) { return true; });
      const auto other = Attend(position, keys, values, sees);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const std::size_t kv = i / (kHeads / kKvHeads * kDimV);
        change[kv] += (other[i] - exact[i]) * (other[i] - exact[i]);
        whole[kv] += exact[i] * exact[i];
      }
    }
    for (std::size_t h = 0; h < change.size(); ++h) errors.push_back(change[h] / whole[h]);
    return errors;
  }
};

void ExpectClose(double actual, double expected, const char* what) {
  EXPECT_NEAR(actual, expected, 1e-3 * expected + 1e-11) << what;
}

TEST(HeadErrors, SamplesAreSpreadOverTheText) {
  const QuerySample sample = QuerySample::Make(Config(0), kTokens, 16);
  ASSERT_EQ(sample.positions.size(), 16u);
  EXPECT_EQ(sample.positions.front(), 17);
  EXPECT_EQ(sample.positions.back(), kTokens - 1);
  EXPECT_EQ(QuerySample::Make(Config(0), 5, 16).positions,
            (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(HeadErrors, WindowsAndSinksHideWhatTheySay) {
  for (const std::int64_t window : {0, 90}) {
    Text text(window);
    const std::vector<HeadErrors> errors =
        text.Measure({KvPolicy::Full(), KvPolicy::SinkRecent(4, 64), KvPolicy::Window(33),
                      KvPolicy::Window(90), KvPolicy::Off()});
    const auto sinks =
        text.Error(text.k, text.v, [](auto q, auto s) { return s < 4 || s > q - 64; });
    const auto recent = text.Error(text.k, text.v, [](auto q, auto s) { return s > q - 33; });
    const auto wide = text.Error(text.k, text.v, [](auto q, auto s) { return s > q - 90; });
    for (std::size_t h = 0; h < errors.size(); ++h) {
      EXPECT_EQ(errors[h].policy[0], 0);
      ExpectClose(errors[h].policy[1], sinks[h], "sinks");
      ExpectClose(errors[h].policy[2], recent[h], "window");
      ExpectClose(errors[h].policy[3], wide[h], "window of the model");
      EXPECT_EQ(errors[h].policy[4], 1);
      EXPECT_GT(recent[h], 0.01);
    }
  }
}

TEST(HeadErrors, TypesRoundAsTheCacheDoes) {
  Text text;
  const std::vector<HeadErrors> errors = text.Measure({});
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    KvCacheParams params;
    params.layers = {{kKvHeads, kDim, kDimV}};
    params.k_type = params.v_type = type;
    params.max_tokens = kTokens;
    SequenceCache cache = *CreateSequenceCache(params, 0);
    ASSERT_TRUE(cache.cache.Reserve(cache.sequence, kTokens).ok());
    ASSERT_TRUE(
        cache.cache.Write(cache.sequence, 0, 0, kTokens, text.k.data(), text.v.data()).ok());
    std::vector<float> k(text.k.size()), v(text.v.size());
    for (std::int64_t row = 0; row < kTokens * kKvHeads; ++row)
      ASSERT_TRUE(cache.cache
                      .Read(cache.sequence, 0, row % kKvHeads, row / kKvHeads,
                            k.data() + row * kDim, v.data() + row * kDimV)
                      .ok());
    const auto all = [](auto, auto) { return true; };
    const auto of_keys = text.Error(k, text.v, all), of_values = text.Error(text.k, v, all);
    const auto index = static_cast<std::size_t>(type);
    for (std::size_t h = 0; h < errors.size(); ++h) {
      EXPECT_NEAR(errors[h].k_type[index], of_keys[h], 0.02 * of_keys[h]) << KvTypeName(type);
      EXPECT_NEAR(errors[h].v_type[index], of_values[h], 0.02 * of_values[h]) << KvTypeName(type);
    }
  }
  EXPECT_EQ(errors[0].k_type[0], 0);
  EXPECT_EQ(errors[0].v_type[0], 0);
}

// Head 0 always attends to token 100, head 1 to no token in particular.
TEST(HeadErrors, BudgetsKeepWhatIsAttendedTo) {
  Text text;
  for (std::int64_t d = 0; d < kDim; ++d) {
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t h = 0; h < 3; ++h) text.q[(t * kHeads + h) * kDim + d] = 1.5F;
    text.k[100 * kKvHeads * kDim + d] = 3;
  }
  const std::vector<HeadErrors> errors = text.Measure(
      {KvPolicy::Budget(96, 32), KvPolicy::SinkRecent(4, 92), KvPolicy::Budget(kTokens, 32)});
  EXPECT_GT(errors[0].policy[1], 0.3);
  EXPECT_LT(errors[0].policy[0], 0.01 * errors[0].policy[1]);
  EXPECT_GT(errors[1].policy[0], 0.01);
  EXPECT_EQ(errors[0].policy[2], 0);
  EXPECT_EQ(errors[1].policy[2], 0);
}

TEST(HeadErrors, NumbersThatATypeCannotHoldAreInfinitelyWrong) {
  Text text;
  text.k[50 * kKvHeads * kDim] = 1e6F;  // beyond f16: head 0 of token 50
  const std::vector<HeadErrors> errors = text.Measure({});
  constexpr auto kF16 = static_cast<std::size_t>(KvType::kF16);
  EXPECT_EQ(errors[0].k_type[kF16], std::numeric_limits<double>::infinity());
  EXPECT_LT(errors[1].k_type[kF16], 1e-3);
}

}  // namespace
}  // namespace manyhead
