#include "runtime/calibrate/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace manyhead {
namespace {

using Heads = std::vector<std::vector<PricedOption>>;

struct Total {
  std::int64_t bytes = 0;
  double loss = 0;
};

Total TotalOf(const Heads& heads, const std::vector<std::size_t>& chosen) {
  Total total;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    total.bytes += heads[h][chosen[h]].bytes;
    total.loss += heads[h][chosen[h]].loss;
  }
  return total;
}

/// The lowest loss within `budget` over every combination; infinite when none fits.
double BestLoss(const Heads& heads, std::int64_t budget, std::size_t first = 0) {
  if (budget < 0) return std::numeric_limits<double>::infinity();
  if (first == heads.size()) return 0;
  double best = std::numeric_limits<double>::infinity();
  for (const PricedOption& option : heads[first])
    best = std::min(best, option.loss + BestLoss(heads, budget - option.bytes, first + 1));
  return best;
}

TEST(ChooseOptions, TakesWhatFits) {
  const Heads heads = {{{10, 5}, {20, 1}, {40, 0}}, {{10, 3}, {20, 2.5}}};
  EXPECT_EQ(ChooseOptions(heads, 19), std::nullopt);
  EXPECT_EQ(ChooseOptions(heads, 20), (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(ChooseOptions(heads, 30), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(ChooseOptions(heads, 40), (std::vector<std::size_t>{1, 1}));
  EXPECT_EQ(ChooseOptions(heads, 50), (std::vector<std::size_t>{2, 0}));
  EXPECT_EQ(ChooseOptions(heads, 1000), (std::vector<std::size_t>{2, 1}));
}

TEST(ChooseOptions, InfiniteLossesAreALastResort) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ChooseOptions({{{1, kInf}, {9, 2}}}, 8), std::nullopt);
  EXPECT_EQ(ChooseOptions({{{1, kInf}, {9, 2}}}, 9), (std::vector<std::size_t>{1}));
  EXPECT_EQ(ChooseOptions({{{5, kInf}, {1, kInf}}}, 9), (std::vector<std::size_t>{1}));
}

// Random small problems against every combination: within the budget, never far from the best, and
// no single change within the budget would be better.
TEST(ChooseOptions, IsCloseToTheBestOfAllCombinations) {
  std::mt19937 random(7);
  double excess = 0;
  int solved = 0;
  for (int round = 0; round < 400; ++round) {
    Heads heads(2 + random() % 4);
    std::int64_t least = 0, most = 0;
    for (auto& options : heads) {
      std::int64_t low = 1 << 20, high = 0;
      options.resize(1 + random() % 5);
      for (PricedOption& option : options) {
        option = {static_cast<std::int64_t>(1 + random() % 50),
                  static_cast<double>(random() % 1000) / 64};
        low = std::min(low, option.bytes);
        high = std::max(high, option.bytes);
      }
      least += low;
      most += high;
    }
    const std::int64_t budget =
        least - 2 + static_cast<std::int64_t>(random()) % (most - least + 3);
    const double best = BestLoss(heads, budget);
    const auto chosen = ChooseOptions(heads, budget);
    ASSERT_EQ(chosen.has_value(), budget >= least);
    if (!chosen) continue;
    const Total total = TotalOf(heads, *chosen);
    ASSERT_LE(total.bytes, budget);
    ASSERT_GE(total.loss, best);
    excess += total.loss - best;
    ++solved;
    for (std::size_t h = 0; h < heads.size(); ++h)
      for (std::size_t i = 0; i < heads[h].size(); ++i) {
        std::vector<std::size_t> other = *chosen;
        other[h] = i;
        const Total changed = TotalOf(heads, other);
        ASSERT_FALSE(changed.bytes <= budget && changed.loss < total.loss) << round;
      }
  }
  EXPECT_GT(solved, 300);
  EXPECT_LT(excess / solved, 0.5) << "losses are 0..16 for each head";
}

// For many heads, the greedy choice along the hulls is optimal except for the last step.
TEST(ChooseOptions, ManyHeadsAreWithinOneStepOfTheBound) {
  std::mt19937 random(8);
  Heads heads(300);
  for (auto& options : heads)
    for (const std::int64_t bytes : {10, 20, 40})
      options.push_back(
          {bytes, static_cast<double>(1 + random() % 1000) / static_cast<double>(bytes)});
  const std::int64_t budget = 300 * 22;
  const Total total = TotalOf(heads, *ChooseOptions(heads, budget));
  EXPECT_GT(total.bytes, budget - 10);
  // Lagrange: for any price, sum of min(loss + price * bytes) - price * budget is a lower bound.
  double bound = 0;
  for (double price = 0; price < 5; price += 0.001) {
    double sum = -price * static_cast<double>(budget);
    for (const auto& options : heads) {
      double best = std::numeric_limits<double>::infinity();
      for (const PricedOption& option : options)
        best = std::min(best, option.loss + price * static_cast<double>(option.bytes));
      sum += best;
    }
    bound = std::max(bound, sum);
  }
  EXPECT_GE(total.loss, bound - 1e-6);
  EXPECT_LE(total.loss, bound + 40);
}

}  // namespace
}  // namespace manyhead
