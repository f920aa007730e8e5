// Tests the division of attention into work as numbers: every row meets every split of keys that it
// sees exactly once, whatever the number of threads and the batch.

#include "runtime/attention/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/attention_kernels.h"

namespace manyhead {
namespace {

using kernels::kAttentionRows;
using kernels::kAttentionSplit;

struct Lengths {
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
};

AttentionParams ParamsOf(std::int64_t kv_heads, std::int64_t group, int threads) {
  AttentionParams params;
  params.num_heads = kv_heads * group;
  params.num_kv_heads = kv_heads;
  params.head_dim = params.head_dim_v = 24;
  params.max_q_len = 700;
  params.max_kv_len = 9000;
  params.window_right = 0;
  params.threads = threads;
  return params;
}

std::vector<AttentionRequest> RequestsOf(const AttentionPartition& partition,
                                         const std::vector<Lengths>& lengths) {
  std::vector<AttentionRequest> requests;
  for (const Lengths& one : lengths) {
    requests.push_back(partition.MakeRequest(one.q_len, one.kv_len, one.kv_len - one.q_len));
    requests.back().index = static_cast<std::int64_t>(requests.size()) - 1;
  }
  return requests;
}

/// Whether a query at `position` sees a key of the split, by the rules of a window and of sinks.
bool SeesSplit(const AttentionParams& params, std::int64_t position, std::int64_t kv_len,
               std::int64_t split) {
  const std::int64_t end = std::min(kv_len, (split + 1) * kAttentionSplit);
  for (std::int64_t key = split * kAttentionSplit; key < end; ++key)
    if (key <= position &&
        (params.window == 0 || key > position - params.window || key < params.num_sink_tokens))
      return true;
  return false;
}

/// (request, KV head, row, split).
using Place = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// Counts how often the items of a step meet each place; a whole item meets all splits from its
/// first.
std::map<Place, int> Meetings(const AttentionParams& params, const AttentionPartition& partition,
                              const std::vector<AttentionRequest>& requests, std::int64_t items) {
  const std::int64_t group = params.num_heads / params.num_kv_heads;
  std::map<Place, int> meetings;
  for (std::int64_t i = 0; i < items; ++i) {
    const AttentionWork work = partition.ItemAt(requests, i);
    const AttentionRequest& request = *work.request;
    EXPECT_LE(request.tile_rows, kAttentionRows);
    const std::int64_t rows = request.q_len * group, first = work.tile * request.tile_rows;
    EXPECT_LT(first, rows);
    for (std::int64_t row = first; row < std::min(rows, first + request.tile_rows); ++row)
      for (std::int64_t part = 0; part < request.parts; ++part)
        if (!request.split || part == work.part)
          ++meetings[{request.index, work.head, row, request.SplitOf(part)}];
  }
  return meetings;
}

void CheckCoverage(const AttentionParams& params, const std::vector<Lengths>& lengths) {
  const AttentionPartition partition(params);
  std::vector<AttentionRequest> requests = RequestsOf(partition, lengths);
  const AttentionWorkCounts work = partition.Cut(requests);
  const std::map<Place, int> meetings = Meetings(params, partition, requests, work.items);
  for (const auto& [place, times] : meetings) ASSERT_EQ(times, 1);
  const std::int64_t group = params.num_heads / params.num_kv_heads;
  for (const AttentionRequest& request : requests)
    for (std::int64_t head = 0; head < params.num_kv_heads; ++head)
      for (std::int64_t row = 0; row < request.q_len * group; ++row)
        for (std::int64_t split = 0; split * kAttentionSplit < request.kv_len; ++split)
          if (SeesSplit(params, request.position + row / group, request.kv_len, split)) {
            ASSERT_EQ(meetings.count({request.index, head, row, split}), 1U)
                << "request " << request.index << " row " << row << " split " << split;
          }
}

TEST(AttentionPartition, EveryRowMeetsEverySplitThatItSeesOnce) {
  for (const int threads : {1, 2, 3, 7, 64})
    for (const std::int64_t group : {1, 3, 7})
      for (const std::int64_t window : {0, 1, 700, 3000})
        for (const std::int64_t sinks : {0, 5}) {
          AttentionParams params = ParamsOf(2, group, threads);
          params.window = window;
          params.num_sink_tokens = sinks;
          SCOPED_TRACE(testing::Message() << threads << " threads, group " << group << ", window "
                                          << window << ", sinks " << sinks);
          CheckCoverage(params, {{1, 5000}});
          CheckCoverage(params, {{3, 2049}, {1, 1}, {40, 40}, {1, 4097}});
        }
}

TEST(AttentionPartition, MergesTakeEveryTileOfSplitRequestsOnce) {
  const AttentionParams params = ParamsOf(3, 2, 8);
  const AttentionPartition partition(params);
  std::vector<AttentionRequest> requests = RequestsOf(partition, {{1, 100}, {2, 5000}, {1, 4000}});
  const AttentionWorkCounts work = partition.Cut(requests);
  EXPECT_FALSE(requests[0].split) << "one split of keys";
  ASSERT_TRUE(requests[1].split && requests[2].split);
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> merged;
  for (std::int64_t i = 0; i < work.merges; ++i) {
    const AttentionWork one = partition.MergeAt(requests, i);
    EXPECT_TRUE(one.request->split);
    EXPECT_TRUE(merged.insert({one.request->index, one.head, one.tile}).second) << i;
  }
  EXPECT_EQ(std::ssize(merged), 3 * (requests[1].tiles + requests[2].tiles));
}

/// Parts rise with their keys and do not depend on threads or neighbours, so neither does the order
/// in which they are merged, and with it no bit.
TEST(AttentionPartition, PartsOfARequestAreTheSameForAnyThreadsAndBatch) {
  for (const std::int64_t window : {0, 900})
    for (const std::int64_t sinks : {0, 5, 600}) {
      std::vector<std::int64_t> expected;
      for (int threads = 1; threads <= 64; ++threads) {
        AttentionParams params = ParamsOf(2, 3, threads);
        params.window = window;
        params.num_sink_tokens = sinks;
        const AttentionPartition partition(params);
        std::vector<AttentionRequest> requests =
            RequestsOf(partition, {{1, threads}, {2, 6000}, {1, 3000}});
        partition.Cut(requests);
        std::vector<std::int64_t> splits;
        for (std::int64_t part = 0; part < requests[1].parts; ++part)
          splits.push_back(requests[1].SplitOf(part));
        EXPECT_TRUE(std::is_sorted(splits.begin(), splits.end(), std::less_equal<>()));
        if (threads == 1) expected = splits;
        EXPECT_EQ(splits, expected) << threads;
      }
    }
}

TEST(AttentionPartition, PartialStatesLieApartWithinTheScratch) {
  const AttentionParams params = ParamsOf(2, 5, 6);
  const AttentionPartition partition(params);
  std::vector<AttentionRequest> requests = RequestsOf(partition, {{1, 2100}, {1, 3000}, {1, 1500}});
  const AttentionWorkCounts work = partition.Cut(requests);
  ASSERT_GT(work.merges, 0);
  EXPECT_LE(work.parts_floats, AttentionScratchOf(params).parts_floats);
  std::map<std::int64_t, std::int64_t> ranges;  // keyed by their beginning
  for (std::int64_t i = 0; i < work.items; ++i) {
    const AttentionWork one = partition.ItemAt(requests, i);
    if (!one.request->split) continue;
    const AttentionPartition::PartPlace place = partition.PlaceOf(one);
    EXPECT_GE(place.room, std::min<std::int64_t>(5, one.request->tile_rows));
    const std::int64_t rows = std::min<std::int64_t>(5, one.request->tile_rows);
    const std::int64_t floats = 2 * place.room + rows * 32;  // values in rows of 32
    EXPECT_TRUE(ranges.emplace(place.offset, place.offset + floats).second);
  }
  std::int64_t end = 0;
  for (const auto& [first, last] : ranges) {
    EXPECT_GE(first, end);
    end = last;
  }
  EXPECT_LE(end, work.parts_floats);
}

TEST(AttentionPartition, RequestsWithoutRoomStayWholeAndAreNamed) {
  AttentionParams params = ParamsOf(1, 4, 2);
  params.max_q_len = 12;
  params.max_kv_len = 1100;
  const AttentionPartition partition(params);
  std::vector<AttentionRequest> requests = RequestsOf(partition, {{12, 1100}});
  const AttentionWorkCounts work = partition.Cut(requests);
  ASSERT_EQ(work.unsplit, &requests[0]);
  EXPECT_FALSE(requests[0].split);
  EXPECT_GT(work.unsplit_floats, work.unsplit_room);
  EXPECT_EQ(work.unsplit_room, AttentionScratchOf(params).parts_floats);
  EXPECT_EQ(work.merges, 0);
  EXPECT_EQ(work.items, requests[0].tiles);
}

}  // namespace
}  // namespace manyhead
