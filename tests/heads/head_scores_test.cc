// Scores from streamed rows against the definitions, applied to whole matrices.

#include "runtime/heads/classify/scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/heads/classes_testing.h"

namespace manyhead {
namespace {

using Matrix = std::vector<std::vector<double>>;  // [query][key]
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kRounding = 1e-6;  // rows are handed over as floats

/// A causal matrix: `share` of each row at the key that `pattern` names, if that is one, the rest
/// drawn.
template <class Pattern>
Matrix Make(std::int64_t tokens, double share, std::uint32_t seed, Pattern pattern) {
  testing::Numbers numbers(seed);
  Matrix matrix;
  for (std::int64_t i = 0; i < tokens; ++i) {
    std::vector<double> row;
    double sum = 0;
    for (std::int64_t j = 0; j <= i; ++j) sum += row.emplace_back(0.01 + numbers.Next());
    const std::int64_t key = pattern(i);
    const double rest = key >= 0 && key <= i ? 1 - share : 1;
    for (double& w : row) w *= rest / sum;
    if (rest < 1) row[static_cast<std::size_t>(key)] += share;
    matrix.push_back(row);
  }
  return matrix;
}

/// Hands the rows of one layer over as the decoder does: by position, then head.
void Feed(HeadScorer& scorer, std::int64_t layer, const std::vector<Matrix>& heads,
          std::size_t first = 0) {
  std::vector<float> row;
  for (std::size_t i = first; i < heads[0].size(); ++i)
    for (std::size_t h = 0; h < heads.size(); ++h) {
      row.clear();
      for (const double w : heads[h][i]) row.push_back(static_cast<float>(w));
      scorer.Add({{layer, static_cast<std::int64_t>(h)}, static_cast<std::int64_t>(i), row, 0, 0});
      std::fill(row.begin(), row.end(), static_cast<float>(kNan));  // a view valid in the call
    }
}

Probe TextProbe(std::int64_t tokens) {
  return {ProbeKind::kText, std::vector<TokenId>(static_cast<std::size_t>(tokens)), 0, 0, 0};
}

double MeanOver(const Matrix& matrix, std::size_t first, std::size_t width, bool at_end) {
  double sum = 0;
  for (std::size_t i = first; i < matrix.size(); ++i)
    for (std::size_t k = 0; k < width; ++k) sum += matrix[i][at_end ? i - k : k];
  return sum / static_cast<double>(matrix.size() - first);
}

double Variation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]) / 2;
  return sum;
}

TEST(HeadScorer, TextScoresAreMeansOverWholeMatrices) {
  constexpr std::int64_t kTokens = 131;
  const auto back = [](std::int64_t k) { return [k](std::int64_t i) { return i - k; }; };
  const std::vector<Matrix> heads = {Make(kTokens, 0.7, 1, back(1)), Make(kTokens, 0.6, 2, back(5)),
                                     Make(kTokens, 0.8, 3, [](std::int64_t) { return 2; }),
                                     Make(kTokens, 0, 4, back(0))};
  HeadScorer scorer({1, 4});  // layer 1 is meant
  scorer.Begin(TextProbe(kTokens));
  Feed(scorer, 1, heads);
  scorer.End();
  const std::vector<HeadScores> all = scorer.Scores();
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].sink, 0);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const HeadScores& scores = all[h + 1];
    std::vector<double> offsets;
    double uniformity = 0;
    for (std::size_t k = 0; k < 17; ++k) {
      double sum = 0;
      for (std::size_t i = 64; i < heads[h].size(); ++i) sum += heads[h][i][i - k];
      offsets.push_back(sum / (kTokens - 64));
    }
    for (std::size_t i = 64; i < heads[h].size(); ++i) {
      double entropy = 0;
      for (const double w : heads[h][i]) entropy -= w * std::log(w);
      uniformity += entropy / std::log(static_cast<double>(i + 1)) / (kTokens - 64);
    }
    const auto best = std::max_element(offsets.begin(), offsets.end());
    EXPECT_NEAR(scores.previous_token, offsets[1], kRounding) << h;
    EXPECT_NEAR(scores.fixed_offset, *best, kRounding) << h;
    EXPECT_EQ(scores.offset, best - offsets.begin()) << h;
    EXPECT_NEAR(scores.sink, MeanOver(heads[h], 64, 4, false), kRounding) << h;
    EXPECT_NEAR(scores.local, MeanOver(heads[h], 64, 16, true), kRounding) << h;
    EXPECT_NEAR(scores.uniformity, uniformity, kRounding) << h;
    EXPECT_TRUE(std::isnan(scores.induction) && std::isnan(scores.retrieval)) << h;
  }
  EXPECT_EQ(all[2].offset, 5);
  EXPECT_EQ(ClassOf(all[1]), HeadClass::kPreviousToken);
  EXPECT_EQ(ClassOf(all[2]), HeadClass::kFixedOffset);
  EXPECT_EQ(ClassOf(all[3]), HeadClass::kSink);
  EXPECT_EQ(ClassOf(all[4]), HeadClass::kCollapsed) << all[4].uniformity;
}

TEST(HeadScorer, TwinsAreFoundAtSampledPositions) {
  constexpr std::int64_t kTokens = 90;
  const auto far = [](std::int64_t i) { return i / 2; };
  const Matrix one = Make(kTokens, 0.5, 7, far), other = Make(kTokens, 0.5, 8, far);
  const std::vector<Matrix> heads = {other, one, one};
  HeadScorer scorer({3});
  scorer.Begin(TextProbe(kTokens));
  Feed(scorer, 0, heads);
  scorer.End();
  const std::vector<HeadScores> scores = scorer.Scores();
  double likeness = 0;
  std::int64_t count = 0;
  for (std::size_t i = 16; i < one.size(); i += 8, ++count)
    likeness += 1 - Variation(one[i], other[i]);
  EXPECT_EQ(scores[0].twin_head, -1);
  EXPECT_EQ(scores[1].twin_head, 0);
  EXPECT_NEAR(scores[1].twin, likeness / static_cast<double>(count), kRounding);
  EXPECT_EQ(scores[2].twin_head, 1);
  EXPECT_NEAR(scores[2].twin, 1, kRounding);
  EXPECT_EQ(ClassOf(scores[2]), HeadClass::kCollapsed);
  EXPECT_NE(ClassOf(scores[1]), HeadClass::kCollapsed);
}

TEST(HeadScorer, RepeatScoresLookWhereTheFirstCopyWas) {
  constexpr std::int64_t kPeriod = 21, kLead = 3, kTokens = kLead + 2 * kPeriod;
  HeadScorer scorer({3});
  double duplicate = 0, induction = 0, constancy = 0;
  std::int64_t rows = 0, compared = 0;
  Matrix last;
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::vector<Matrix> heads = {
        Make(kTokens, 0.8, 10 + round, [](std::int64_t i) { return i - kPeriod + 1; }),
        Make(kTokens, 0.7, 20 + round, [](std::int64_t i) { return i - kPeriod; }),
        Make(kTokens, 0.99, 30 + round, [](std::int64_t i) { return i / 3; })};
    scorer.Begin(
        {ProbeKind::kRepeat, std::vector<TokenId>(kTokens), kLead, kPeriod, kLead + kPeriod});
    Feed(scorer, 0, heads);
    scorer.End();
    for (std::size_t i = kLead + kPeriod; i < kTokens; ++i, ++rows) {
      induction += heads[0][i][i - kPeriod + 1];
      duplicate += heads[1][i][i - kPeriod];
    }
    for (std::size_t i = 16; !last.empty() && i < kTokens; i += 8, ++compared)
      constancy += 1 - Variation(last[i], heads[2][i]);
    last = heads[2];
  }
  const std::vector<HeadScores> scores = scorer.Scores();
  EXPECT_NEAR(scores[0].induction, induction / static_cast<double>(rows), kRounding);
  EXPECT_NEAR(scores[1].duplicate_token, duplicate / static_cast<double>(rows), kRounding);
  EXPECT_NEAR(scores[2].constancy, constancy / static_cast<double>(compared), kRounding);
  EXPECT_EQ(ClassOf(scores[0]), HeadClass::kInduction);
  EXPECT_EQ(ClassOf(scores[1]), HeadClass::kDuplicateToken);
  EXPECT_EQ(ClassOf(scores[2]), HeadClass::kCollapsed);
}

TEST(HeadScorer, NeedlesCountWhereTheStrongestArcIsCopied) {
  constexpr std::int64_t kBegin = 5, kCount = 10, kAgain = 40, kTokens = kAgain + kCount;
  HeadScorer scorer({2});
  const auto next = [](std::int64_t i) { return i - kAgain + kBegin + 1; };
  const auto present = [](std::int64_t i) { return i - kAgain + kBegin; };
  for (const bool all : {true, false}) {
    scorer.Begin({ProbeKind::kNeedle, std::vector<TokenId>(kTokens), kBegin, kCount, kAgain});
    Feed(scorer, 0, {Make(kTokens, 0.9, 1, next), Make(kTokens, 0.9, 2, present)}, kAgain);
    std::vector<bool> copied(kCount, all);
    copied[6] = true;
    copied[1] = true;  // a token of the cue, which does not count
    scorer.End(copied);
  }
  const std::vector<HeadScores> scores = scorer.Scores();
  EXPECT_NEAR(scores[0].retrieval, (6.0 + 1.0) / 12.0, 1e-12);
  EXPECT_EQ(scores[1].retrieval, 0);
}

TEST(ClassOf, TakesTheFirstClassWhoseThresholdIsReached) {
  HeadScores scores;
  EXPECT_EQ(ClassOf(scores), HeadClass::kMixed);
  const auto step = [&](double HeadScores::*score, double threshold, HeadClass expected) {
    scores.*score = std::nextafter(threshold, 0);
    EXPECT_NE(ClassOf(scores), expected) << HeadClassName(expected);
    scores.*score = threshold;
    EXPECT_EQ(ClassOf(scores), expected) << HeadClassName(expected);
  };
  step(&HeadScores::local, 0.7, HeadClass::kLocal);
  step(&HeadScores::uniformity, 0.95, HeadClass::kCollapsed);
  scores.uniformity = 0;
  step(&HeadScores::constancy, 0.95, HeadClass::kCollapsed);
  step(&HeadScores::sink, 0.5, HeadClass::kSink);
  scores.dependencies = {{"obj", true, 40, 0.59, 0.5, 2}, {"det", false, 9, 1, 0, 1}};
  EXPECT_EQ(ClassOf(scores), HeadClass::kSink);
  scores.dependencies.push_back({"nsubj", false, 40, 0.75, 0.5, 1});
  EXPECT_EQ(ClassOf(scores), HeadClass::kSyntactic);
  EXPECT_EQ(BestDependency(scores)->relation, "nsubj");
  step(&HeadScores::duplicate_token, 0.4, HeadClass::kDuplicateToken);
  step(&HeadScores::fixed_offset, 0.4, HeadClass::kFixedOffset);
  step(&HeadScores::previous_token, 0.4, HeadClass::kPreviousToken);
  step(&HeadScores::retrieval, 0.1, HeadClass::kRetrieval);
  step(&HeadScores::induction, 0.4, HeadClass::kInduction);
  scores.twin = 1;  // twin of a sink: all sinks are alike
  EXPECT_EQ(ClassOf(scores), HeadClass::kInduction);
  scores.sink = 0;
  EXPECT_EQ(ClassOf(scores), HeadClass::kCollapsed);
}

TEST(ClassOf, ScoresThatWereNotMeasuredDecideNothing) {
  HeadScores scores;
  for (double* score : {&scores.previous_token, &scores.fixed_offset, &scores.duplicate_token,
                        &scores.induction, &scores.retrieval, &scores.sink, &scores.local,
                        &scores.uniformity, &scores.constancy, &scores.twin})
    *score = kNan;
  EXPECT_EQ(ClassOf(scores), HeadClass::kMixed);
}

TEST(ClassPolicies, AKvHeadKeepsWhatItsMostDemandingQueryHeadNeeds) {
  ModelConfig config;
  LayerConfig layer;
  layer.num_heads = 6;
  layer.num_kv_heads = 3;
  config.layers = {layer, layer};
  std::vector<HeadReport> heads;
  const HeadClass classes[] = {
      HeadClass::kSink,      HeadClass::kInduction, HeadClass::kSink,  HeadClass::kPreviousToken,
      HeadClass::kCollapsed, HeadClass::kSink,      HeadClass::kLocal, HeadClass::kSyntactic,
      HeadClass::kRetrieval, HeadClass::kCollapsed, HeadClass::kSink,  HeadClass::kCollapsed};
  for (std::int64_t i = 0; i < 12; ++i) {
    HeadReport report;
    report.id = {i / 6, i % 6};
    report.kv_head = i % 6 / 2;
    report.head_class = classes[i];
    heads.push_back(report);
  }
  heads[11].scores.twin = 1;  // twin of the retrieval head: it does the same
  heads[11].scores.twin_head = 2;
  const auto policies = ClassPolicies(config, heads);
  ASSERT_EQ(policies.size(), 2U);
  EXPECT_EQ(policies[0][0].policy, KvPolicy::Full());
  EXPECT_EQ(policies[0][1].policy, KvPolicy::SinkRecent(4, 64));
  EXPECT_EQ(policies[0][2].policy, KvPolicy::SinkRecent(4, 16));
  EXPECT_EQ(policies[1][0].policy, KvPolicy::SinkRecent(4, 256));
  EXPECT_EQ(policies[1][1].policy, KvPolicy::Full());
  EXPECT_EQ(policies[1][2].policy, KvPolicy::Full());
  KvCacheParams params;
  params.layers = {{3, 8, 8}, {3, 8, 8}};
  const auto read = ParseKvHeads(FormatKvHeads(policies), params);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, policies);
}

}  // namespace
}  // namespace manyhead
