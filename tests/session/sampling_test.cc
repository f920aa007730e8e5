#include "manyhead/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace manyhead {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<float> kLogits = {1, 5, 5, -kInf};

Result<TokenId> SampleOnce(SamplingParams params, const std::vector<float>& logits,
                           const std::vector<TokenId>& history = {}) {
  Result<Sampler> sampler = Sampler::Create(params, static_cast<std::int64_t>(logits.size()));
  if (!sampler.ok()) return sampler.status();
  return sampler->Sample(logits, history);
}

/// Counts how often each id is drawn.
std::map<TokenId, int> Draw(SamplingParams params, const std::vector<float>& logits, int times) {
  std::map<TokenId, int> counts;
  Result<Sampler> sampler = Sampler::Create(params, static_cast<std::int64_t>(logits.size()));
  EXPECT_TRUE(sampler.ok());
  for (int i = 0; i < times; ++i) {
    const Result<TokenId> id = sampler->Sample(logits, {});
    EXPECT_TRUE(id.ok());
    ++counts[*id];
  }
  return counts;
}

// Inputs of public reports on temperature 0 (ggml-org/ggml#37, google-deepmind/gemma#562).
TEST(Sampler, TemperatureZeroIsArgmaxWithTheLowestIdOnTies) {
  EXPECT_EQ(*SampleOnce({.temperature = 0}, kLogits), 1);
}

TEST(Sampler, TinyTemperatureDrawsOneOfTheBest) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Result<TokenId> id = SampleOnce({.temperature = 1e-30F, .seed = seed}, kLogits);
    ASSERT_TRUE(id.ok());
    EXPECT_THAT(*id, ::testing::AnyOf(1, 2));
  }
}

TEST(Sampler, ParametersOutOfRangeAreNamedWithTheirValue) {
  const std::pair<SamplingParams, const char*> cases[] = {
      {{.temperature = -1}, "temperature = -1"},
      {{.temperature = NAN}, "temperature = nan"},
      {{.temperature = kInf}, "temperature = inf"},
      {{.top_k = -3}, "top_k = -3"},
      {{.top_p = 1.5F}, "top_p = 1.5"},
      {{.top_p = NAN}, "top_p = nan"},
      {{.min_p = -0.5F}, "min_p = -0.5"},
      {{.repeat_penalty = 0}, "repeat_penalty = 0"},
      {{.repeat_last_n = -1}, "repeat_last_n = -1"},
  };
  for (const auto& [params, text] : cases) {
    const Result<Sampler> sampler = Sampler::Create(params, 4);
    EXPECT_EQ(sampler.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(sampler.status().message(), ::testing::HasSubstr(text));
  }
  EXPECT_EQ(Sampler::Create({}, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(Sampler, LogitsThatAreNoDistributionAreErrors) {
  for (float bad : {NAN, kInf}) {
    const Result<TokenId> id = SampleOnce({}, {0, 1, bad, 2});
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(id.status().message(), ::testing::HasSubstr("token 2"));
  }
  EXPECT_FALSE(SampleOnce({.temperature = 1}, {-kInf, -kInf}).ok());
  Result<Sampler> sampler = Sampler::Create({}, 4);
  EXPECT_THAT(sampler->Sample(std::vector<float>{1, 2}, {}).status().message(),
              ::testing::HasSubstr("2 elements; expected vocab_size = 4"));
}

TEST(Sampler, TopKZeroIsOffAndAboveTheVocabularyIsAll) {
  const std::vector<float> equal = {2, 2, 2, 2};
  for (std::int64_t k : {0, 4, 10})
    EXPECT_EQ(Draw({.temperature = 1, .top_k = k}, equal, 400).size(), 4U) << k;
  EXPECT_EQ(Draw({.temperature = 1, .top_k = 2}, equal, 400).size(), 2U);
  EXPECT_EQ(Draw({.temperature = 1, .top_k = 1}, kLogits, 50), (std::map<TokenId, int>{{1, 50}}));
}

TEST(Sampler, TopPZeroKeepsTheBestToken) {
  EXPECT_EQ(Draw({.temperature = 1, .top_p = 0}, kLogits, 50), (std::map<TokenId, int>{{1, 50}}));
}

TEST(Sampler, TopPKeepsTheFewestTokensWithThatShare) {
  // probabilities 0.5, 0.25, 0.125, 0.125
  const std::vector<float> logits = {std::log(4.0F), std::log(2.0F), 0, 0};
  EXPECT_EQ(Draw({.temperature = 1, .top_p = 0.49F}, logits, 300).size(), 1U);
  EXPECT_EQ(Draw({.temperature = 1, .top_p = 0.74F}, logits, 300).size(), 2U);
  EXPECT_EQ(Draw({.temperature = 1, .top_p = 0.8F}, logits, 300).size(), 3U);
  // After top_k = 2 the shares are 2/3 and 1/3.
  EXPECT_EQ(Draw({.temperature = 1, .top_k = 2, .top_p = 0.6F}, logits, 300).size(), 1U);
}

TEST(Sampler, TopPOverManyEqualTokensKeepsTheirShare) {
  const std::vector<float> equal(1000, 0.5F);
  const auto counts = Draw({.temperature = 1, .top_p = 0.3F}, equal, 5000);
  EXPECT_GT(counts.size(), 250U);
  EXPECT_LE(counts.rbegin()->first, 300);  // ties go by id
}

TEST(Sampler, MinPDropsTokensBelowAShareOfTheBest) {
  const std::vector<float> logits = {std::log(4.0F), std::log(2.0F), 0, 0};
  EXPECT_EQ(Draw({.temperature = 1, .min_p = 0.4F}, logits, 300).size(), 2U);
  EXPECT_EQ(Draw({.temperature = 1, .min_p = 1}, logits, 300).size(), 1U);
}

TEST(Sampler, FrequenciesFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0, 1, -kInf, 2};
  const int n = 40000;
  for (float temperature : {0.5F, 1.0F, 2.0F}) {
    const auto counts = Draw({.temperature = temperature, .seed = 7}, logits, n);
    double total = 0;
    for (float l : logits) total += std::exp(static_cast<double>(l / temperature));
    EXPECT_EQ(counts.count(2), 0U);
    for (const auto& [id, count] : counts) {
      const double p = std::exp(static_cast<double>(logits[id] / temperature)) / total;
      EXPECT_NEAR(count, n * p, 4 * std::sqrt(n * p * (1 - p))) << id;  // four standard deviations
    }
  }
}

TEST(Sampler, RepeatPenaltyCountsEachIdOnceWithinTheLastN) {
  SamplingParams params{.repeat_penalty = 2, .repeat_last_n = 3};
  EXPECT_EQ(*SampleOnce(params, {4, 3, 1}, {0}), 1);           // 4 / 2 < 3
  EXPECT_EQ(*SampleOnce(params, {5.9F, 2.9F, 1}, {0, 0}), 0);  // once: 2.95, not 1.475
  EXPECT_EQ(*SampleOnce(params, {4, 3, 1}, {0, 2, 2, 2}), 0);  // out of the last 3
  EXPECT_EQ(*SampleOnce(params, {-1, -1.5F}, {0}), 1);         // -1 * 2 < -1.5
  params.repeat_last_n = 0;
  EXPECT_EQ(*SampleOnce(params, {4, 3, 1}, {0}), 0);
}

// A penalty may carry a logit beyond the range of f32; the id that is drawn is one of the
// vocabulary.
TEST(Sampler, APenaltyBeyondTheRangeOfF32StillDrawsAToken) {
  const struct {
    float penalty;
    std::vector<float> logits;
    std::vector<TokenId> history;
  } cases[] = {{1e-40F, {1, 2, 3}, {2}},
               {3e38F, {-10, -20, -30}, {0, 1, 2}},
               {1.5F, {-3e38F, -3e38F}, {0, 1}}};
  for (const auto& c : cases) {
    for (std::int64_t top_k : {0, 2}) {
      const Result<TokenId> id =
          SampleOnce({.temperature = 1, .top_k = top_k, .top_p = 0.9F, .repeat_penalty = c.penalty},
                     c.logits, c.history);
      ASSERT_TRUE(id.ok()) << id.status().message();
      EXPECT_GE(*id, 0);
      EXPECT_LT(*id, static_cast<TokenId>(c.logits.size()));
    }
  }
}

TEST(Sampler, APenaltyNeverMakesAnImpossibleTokenPossible) {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(
        *SampleOnce({.temperature = 2, .repeat_penalty = 0.5F, .seed = seed}, {-kInf, 0}, {0}), 1);
}

TEST(Sampler, ASeedGivesTheSameTokensAgain) {
  const std::vector<float> logits(100, 0.0F);
  std::vector<std::vector<TokenId>> runs;
  for (std::uint64_t seed : {1, 1, 2}) {
    Result<Sampler> sampler = Sampler::Create({.temperature = 1, .seed = seed}, 100);
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(*sampler->Sample(logits, {}));
    runs.push_back(ids);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

}  // namespace
}  // namespace manyhead
