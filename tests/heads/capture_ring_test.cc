#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "manyhead/heads.h"

namespace manyhead::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

void Add(CaptureRing& ring, std::int64_t position, const std::vector<float>& weights) {
  ring.Add({{1, 2}, position, weights, 0.5F, 0.25F});
}

TEST(CaptureRing, KeepsWholeRows) {
  CaptureRing ring({.max_rows = 2, .max_weights = 10});
  EXPECT_EQ(ring.size(), 0);
  Add(ring, 0, {1});
  Add(ring, 1, {0.25F, 0.75F});
  Add(ring, 2, {0, 0.5F, 0.5F});
  ASSERT_EQ(ring.size(), 2);
  EXPECT_EQ(ring.dropped(), 1);
  EXPECT_EQ(ring[0].position, 1);
  EXPECT_EQ(ring[1].head, (HeadId{1, 2}));
  EXPECT_EQ(ring[1].lse, 0.5F);
  EXPECT_EQ(ring[1].sink_share, 0.25F);
  EXPECT_THAT(ring[0].weights, ElementsAre(0.25F, 0.75F));
  EXPECT_THAT(ring[1].weights, ElementsAre(0, 0.5F, 0.5F));
  EXPECT_THAT(ring[1].keys, IsEmpty());
  ring.Clear();
  EXPECT_EQ(ring.size(), 0);
  EXPECT_EQ(ring.dropped(), 0);
}

TEST(CaptureRing, KeepsTheLargestWeights) {
  CaptureRing ring({.max_rows = 8, .max_weights = 6, .top_k = 3});
  Add(ring, 1, {0.25F, 0.75F});
  Add(ring, 5, {0.1F, 0.3F, 0.05F, 0.3F, 0.05F, 0.2F});
  ASSERT_EQ(ring.size(), 2);
  EXPECT_THAT(ring[0].keys, ElementsAre(1, 0));
  EXPECT_THAT(ring[0].weights, ElementsAre(0.75F, 0.25F));
  EXPECT_THAT(ring[1].keys, ElementsAre(1, 3, 5)) << "of equals the earlier key first";
  EXPECT_THAT(ring[1].weights, ElementsAre(0.3F, 0.3F, 0.2F));
}

TEST(CaptureRing, ARowThatNeverFitsIsDropped) {
  CaptureRing ring({.max_rows = 8, .max_weights = 3});
  Add(ring, 1, {0.25F, 0.75F});
  Add(ring, 3, {1, 0, 0, 0});
  EXPECT_EQ(ring.size(), 1);
  EXPECT_EQ(ring.dropped(), 1);
}

// Rows of any lengths, against a list that keeps what fits by the same rule: the newest rows.
TEST(CaptureRing, RandomRowsStayWhole) {
  std::mt19937 bits(5);
  for (const std::int64_t top_k : {0, 4}) {
    for (int round = 0; round < 30; ++round) {
      const std::int64_t max_rows = 1 + bits() % 12, max_weights = 20 + bits() % 50;
      CaptureRing ring({max_rows, max_weights, top_k});
      std::deque<std::vector<float>> added;
      for (int i = 0; i < 200; ++i) {
        std::vector<float> row(1 + bits() % 20);
        for (float& w : row) w = static_cast<float>(bits() % 64) / 64;
        Add(ring, i, row);
        if (top_k > 0) {
          std::stable_sort(row.begin(), row.end(), std::greater<>());
          row.resize(std::min<std::size_t>(row.size(), 4));
        }
        added.push_back(row);
        ASSERT_GE(ring.size(), 1);
        ASSERT_EQ(ring.size() + ring.dropped(), i + 1);
        std::int64_t held = 0;
        for (std::int64_t r = 0; r < ring.size(); ++r) {
          const std::size_t index = added.size() - static_cast<std::size_t>(ring.size() - r);
          ASSERT_EQ(ring[r].position, static_cast<std::int64_t>(index));
          ASSERT_THAT(ring[r].weights, ElementsAreArray(added[index]));
          held += std::ssize(ring[r].weights);
        }
        ASSERT_LE(held, max_weights);
        // Nothing goes that need not: at most one row's length is lost at the end of the memory.
        const auto longest = top_k > 0 ? 4 : 20;
        if (ring.size() < max_rows && ring.size() < std::ssize(added)) {
          ASSERT_GT(held + 2 * longest, max_weights - longest);
        }
      }
    }
  }
}

}  // namespace
}  // namespace manyhead::testing
