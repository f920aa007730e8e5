// Captured rows and profiles of real models against a recomputation in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/heads/observed_decoder.h"
#include "tests/support/model_files.h"

namespace manyhead::testing {
namespace {

struct Sums {
  double entropy = 0, sink = 0, recent = 0, mean = 0, max = 0;
};

class ObservedModels : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, ObservedModels,
                         ::testing::Values("bundled", "gemma3-270m", "qwen2.5-coder-0.5b"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

/// Rows near the start, around where windows of 512 begin to hide, and decoded ones.
TEST_P(ObservedModels, RowsAndMeansEqualDoublePrecision) {
  const std::string path = FindModel(GetParam());
  if (path.empty()) GTEST_SKIP() << GetParam() << " has not been fetched";
  const Model model = *Model::Load(path);
  constexpr std::int64_t kEvery = 97;
  const std::int64_t vocab = model.config().vocab_size;
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < 680; ++i)
    ids.push_back(
        static_cast<TokenId>((i % 90 * 7919 + 37) % std::min<std::int64_t>(vocab, 30000)));
  for (const auto& [k_type, v_type] :
       {std::pair(KvType::kF16, KvType::kF16), std::pair(KvType::kInt8, KvType::kInt4)}) {
    ObservedDecoder decoder(model,
                            {.context = 700, .chunk = 300, .k_type = k_type, .v_type = v_type});
    const HeadProfileOptions options{.every = kEvery};
    HeadProfile profile;
    decoder.Profile(&profile, options);
    std::map<std::pair<HeadId, std::int64_t>, std::vector<float>> rows;
    decoder.Capture(
        {.first = kEvery - 1, .every = kEvery, .on_row = [&](const CapturedRow& row) {
           rows[{row.head, row.position}].assign(row.weights.begin(), row.weights.end());
         }});
    std::map<HeadId, Sums> sums;
    double worst = 0;
    std::size_t seen = 0;
    const std::span<const TokenId> all(ids);
    for (const auto& [begin, count] :
         {std::pair(0, 300), {300, 300}, {600, 78}, {678, 1}, {679, 1}}) {
      decoder.Step(all.subspan(begin, count));
      for (const auto& [key, row] : rows) {
        const auto& [head, position] = key;
        if (position < begin) continue;
        ++seen;
        const std::vector<double> expected = decoder.Weights(head, position);
        ASSERT_EQ(row.size(), expected.size());
        double sum = 0;
        Sums& of_head = sums[head];
        for (std::int64_t s = 0; s <= position; ++s) {
          const double w = expected[s];
          worst = std::max(worst, std::fabs(double{row[s]} - w));
          sum += double{row[s]};
          if (w > 0) of_head.entropy -= w * std::log(w);
          if (s < options.sink_tokens) of_head.sink += w;
          if (position - s < options.recent) of_head.recent += w;
          of_head.mean += w * static_cast<double>(position - s);
        }
        of_head.max += *std::max_element(expected.begin(), expected.end());
        ASSERT_NEAR(sum, 1, 1e-5);
      }
    }
    EXPECT_LE(worst, 1e-4);
    constexpr double kRows = 680 / kEvery;
    EXPECT_EQ(seen, sums.size() * static_cast<std::size_t>(kRows));
    for (const auto& [head, sum] : sums) {
      SCOPED_TRACE("layer " + std::to_string(head.layer) + ", head " + std::to_string(head.head));
      const HeadStats& stats = profile.heads[head.layer][head.head];
      const auto near = [](double actual, double expected) {
        EXPECT_NEAR(actual, expected, 0.01 * expected + 1e-6);
      };
      EXPECT_EQ(stats.rows, kRows);
      near(stats.entropy, sum.entropy / kRows);
      near(stats.sink_mass, sum.sink / kRows);
      near(stats.recent_mass, sum.recent / kRows);
      near(stats.mean_distance, sum.mean / kRows);
      near(stats.max_weight, sum.max / kRows);
    }
  }
}

}  // namespace
}  // namespace manyhead::testing
