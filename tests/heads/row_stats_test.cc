#include "runtime/heads/observe/row_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace manyhead::testing {
namespace {

/// The statistics by their definitions.
RowStats Expected(const std::vector<float>& weights, const HeadProfileOptions& options) {
  RowStats stats;
  const auto position = std::ssize(weights) - 1;
  double total = 0, within = 0;
  for (std::int64_t s = 0; s <= position; ++s) {
    const double w = weights[s];
    total += w;
    if (s < options.sink_tokens) stats.sink_mass += w;
    if (position - s < options.recent) stats.recent_mass += w;
    stats.mean_distance += w * static_cast<double>(position - s);
    stats.max_weight = std::max(stats.max_weight, w);
  }
  stats.sees_keys = total > 0;
  if (!stats.sees_keys) return stats;
  stats.mean_distance /= total;
  for (std::int64_t d = 0; d <= position; ++d) {
    within += double{weights[position - d]};
    if (within < total / 2) continue;
    stats.median_distance = static_cast<double>(d);
    break;
  }
  return stats;
}

void Check(const std::vector<float>& weights, const SeenKeys& seen,
           const HeadProfileOptions& options) {
  const RowStats expected = Expected(weights, options);
  std::vector<float> poisoned = weights;  // hidden keys must not be read
  for (std::int64_t s = 0; s < std::ssize(weights); ++s)
    if (s >= seen.sinks && (s < seen.begin || s >= seen.end)) poisoned[s] = NAN;
  const RowStats stats = StatsOfRow(poisoned.data(), seen, std::ssize(weights) - 1, options);
  EXPECT_EQ(stats.sees_keys, expected.sees_keys);
  const double far = static_cast<double>(weights.size());
  EXPECT_NEAR(stats.sink_mass, expected.sink_mass, 1e-6);
  EXPECT_NEAR(stats.recent_mass, expected.recent_mass, 1e-6);
  EXPECT_NEAR(stats.mean_distance, expected.mean_distance, 1e-6 * far);
  EXPECT_EQ(stats.median_distance, expected.median_distance);
  EXPECT_EQ(stats.max_weight, expected.max_weight);
}

/// Weights in 1/1024, so that every sum is exact, of the keys that are seen.
std::vector<float> RandomRow(std::int64_t position, const SeenKeys& seen, std::mt19937& bits) {
  std::vector<float> weights(static_cast<std::size_t>(position + 1));
  for (int left = 1024; left > 0;) {
    const std::int64_t s = static_cast<std::int64_t>(bits() % weights.size());
    if (s >= seen.sinks && (s < seen.begin || s >= seen.end)) continue;
    const int share = std::min(left, 1 << bits() % 9);
    weights[s] += static_cast<float>(share) / 1024;
    left -= share;
  }
  return weights;
}

TEST(RowStats, FollowTheirDefinitions) {
  std::mt19937 bits(3);
  for (const std::int64_t position : {0, 1, 14, 15, 16, 63, 64, 127, 300, 1000}) {
    const std::int64_t end = position + 1;
    for (const SeenKeys& seen :
         {SeenKeys{0, 0, end}, SeenKeys{0, end / 2, end}, SeenKeys{end / 4, end / 2, end},
          SeenKeys{end / 3, std::max(end - 20, end / 3), end}}) {
      if (seen.begin == seen.end) continue;
      for (const HeadProfileOptions& options :
           {HeadProfileOptions{1, 4, 64}, HeadProfileOptions{1, 0, 1},
            HeadProfileOptions{1, 5000, 5000}, HeadProfileOptions{1, end / 3, end / 3 + 1}})
        Check(RandomRow(position, seen, bits), seen, options);
    }
  }
}

TEST(RowStats, OneKeyOrNone) {
  std::vector<float> weights(200);
  Check(weights, {0, 0, 200}, {});
  Check(weights, {0, 200, 0}, {});
  for (const std::size_t s : {0, 1, 100, 199}) {
    weights[s] = 1;
    Check(weights, {0, 0, 200}, {});
    weights[s] = 0;
  }
}

}  // namespace
}  // namespace manyhead::testing
