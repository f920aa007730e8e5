#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/cache/cache_testing.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;

KvCacheParams TwoLayers(std::int64_t sequences) {
  KvCacheParams params;
  params.layers = {{2, 16, 0}, {1, 8, 24}};
  params.page_size = 16;
  params.max_tokens = 200;
  params.capacity_bytes = *KvCapacityBytes(params, sequences, 100);
  return params;
}

/// Returns the bytes of one page of every head.
std::int64_t RowBytes(const KvCache& cache) { return cache.bytes_per_token() * 16; }

TEST(KvSharing, AForkTakesTablesOnlyAndCopiesThePageItWrites) {
  KvCache cache = *KvCache::Create(TwoLayers(3));
  const SequenceId a = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 40)).ok());
  const KvUsage before = cache.usage();
  const SequenceId b = *cache.Fork(a);
  EXPECT_EQ(cache.usage().used_bytes, before.used_bytes);
  EXPECT_EQ(cache.usage().head_bytes, before.head_bytes);
  EXPECT_EQ(cache.usage().table_bytes - before.table_bytes, cache.usage(b)->table_bytes);
  EXPECT_EQ(cache.usage(b)->used_bytes, 3 * RowBytes(cache));
  EXPECT_EQ(cache.length(b), 40);

  ASSERT_TRUE(Append(cache, b, Serials(500, 3)).ok());
  EXPECT_EQ(cache.usage().used_bytes, 4 * RowBytes(cache)) << "the third page, copied";
  ASSERT_TRUE(Append(cache, a, Serials(40, 3)).ok());
  EXPECT_EQ(cache.usage().used_bytes, 4 * RowBytes(cache)) << "now its own";
  for (std::int64_t s = 0; s < 43; ++s) {
    EXPECT_TRUE(HoldsToken(cache, a, s, s));
    EXPECT_TRUE(HoldsToken(cache, b, s, s < 40 ? s : 460 + s));
  }
  ASSERT_TRUE(cache.FreeSequence(a).ok());
  EXPECT_EQ(cache.usage().used_bytes, 3 * RowBytes(cache));
  for (std::int64_t s = 0; s < 40; ++s) EXPECT_TRUE(HoldsToken(cache, b, s, s));
  ASSERT_TRUE(cache.Truncate(b, 16).ok());
  EXPECT_EQ(cache.usage().used_bytes, RowBytes(cache));
}

TEST(KvSharing, WritingIntoASharedPageLeavesTheOther) {
  KvCache cache = *KvCache::Create(TwoLayers(3));
  const SequenceId a = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 32)).ok());
  const SequenceId b = *cache.Fork(a);
  const Rows rows = MakeRows(cache.params().layers[0], 0, {77});
  ASSERT_TRUE(cache.Write(b, 0, 20, 1, rows.k.data(), rows.v.data()).ok());
  std::vector<float> k(16);
  ASSERT_TRUE(cache.Read(b, 0, 1, 20, k.data(), nullptr).ok());
  EXPECT_EQ(k[3], KElement(77, 0, 1, 3));
  ASSERT_TRUE(cache.Read(a, 0, 1, 20, k.data(), nullptr).ok());
  EXPECT_EQ(k[3], KElement(20, 0, 1, 3));
  EXPECT_TRUE(HoldsToken(cache, a, 20, 20));
}

// A full pool: neither a copy for a write nor a fork's tables find room, and nothing changes.
TEST(KvSharing, NoRoomForACopyChangesNothing) {
  KvCacheParams params = TwoLayers(2);
  params.capacity_bytes = *KvCapacityBytes(params, 2, 16) + 0;
  KvCache cache = *KvCache::Create(params);
  const SequenceId a = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 10)).ok());
  const SequenceId b = *cache.Fork(a);
  ASSERT_TRUE(Append(cache, a, Serials(10, 1)).ok());
  const SequenceId c = a;
  EXPECT_EQ(cache.Fork(c).status().code(), StatusCode::kOutOfPages);
  ASSERT_TRUE(cache.FreeSequence(b).ok());
  const SequenceId d = *cache.Fork(a);
  ASSERT_TRUE(cache.Truncate(a, 5).ok());
  ASSERT_TRUE(Append(cache, a, Serials(90, 11)).ok()) << "its own copy of the only page";
  const KvUsage before = cache.usage();
  const Status status = cache.Reserve(a, 1);
  EXPECT_EQ(status.code(), StatusCode::kOutOfPages);
  EXPECT_THAT(status.message(), HasSubstr("of capacity_bytes = "));
  EXPECT_EQ(cache.usage().used_bytes, before.used_bytes);
  EXPECT_EQ(cache.usage().table_bytes, before.table_bytes);
  ASSERT_TRUE(Append(cache, d, Serials(11, 5)).ok()) << "others keep working";
  for (std::int64_t s = 0; s < 16; ++s) {
    EXPECT_TRUE(HoldsToken(cache, d, s, s));
    EXPECT_TRUE(HoldsToken(cache, a, s, s < 5 ? s : 85 + s));
  }
}

TEST(KvSharing, CopiesShareWholePagesAndCopyTheRest) {
  KvCache cache = *KvCache::Create(TwoLayers(3));
  const SequenceId a = *cache.CreateSequence(), b = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 70)).ok());
  ASSERT_TRUE(Append(cache, b, Serials(300, 21)).ok());
  const std::int64_t before = cache.usage().used_bytes;
  ASSERT_TRUE(cache.Copy(a, 21, 60, b).ok());
  EXPECT_EQ(cache.usage().used_bytes, before) << "21 to 31 joined b's page, 32 to 59 are shared";
  EXPECT_EQ(cache.length(b), 60);
  for (std::int64_t s = 0; s < 60; ++s) EXPECT_TRUE(HoldsToken(cache, b, s, s < 21 ? 300 + s : s));

  const SequenceId c = *cache.CreateSequence();
  ASSERT_TRUE(cache.Copy(a, 40, 50, c).ok());
  EXPECT_EQ(cache.length(c), 50);
  EXPECT_FALSE(cache.Holds(c, 0, 0, 39));
  EXPECT_TRUE(cache.Holds(c, 1, 0, 40));
  EXPECT_EQ((*cache.head_usage(c))[0][1].tokens, 10);
  EXPECT_EQ((*cache.head_usage(c))[0][1].pages, 2);
  ASSERT_TRUE(Append(cache, c, Serials(700, 2)).ok());
  for (std::int64_t s = 40; s < 52; ++s) EXPECT_TRUE(HoldsToken(cache, c, s, s < 50 ? s : 650 + s));
  for (std::int64_t s = 0; s < 70; ++s) EXPECT_TRUE(HoldsToken(cache, a, s, s));
}

TEST(KvSharing, DroppingGivesWholePagesBack) {
  KvCache cache = *KvCache::Create(TwoLayers(2));
  const SequenceId a = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 70)).ok());
  ASSERT_TRUE(cache.Drop(a, 10, 50).ok());
  EXPECT_EQ(cache.usage().used_bytes, 3 * RowBytes(cache)) << "pages 1 and 2 are gone";
  EXPECT_EQ(cache.length(a), 70);
  EXPECT_TRUE(HoldsToken(cache, a, 9, 9));
  EXPECT_FALSE(cache.Holds(a, 0, 0, 10));
  EXPECT_FALSE(cache.Holds(a, 0, 0, 49));
  EXPECT_TRUE(HoldsToken(cache, a, 50, 50));
  ASSERT_TRUE(cache.Drop(a, 64, 70).ok());
  EXPECT_EQ(cache.usage().used_bytes, 2 * RowBytes(cache)) << "the last page too";
  ASSERT_TRUE(Append(cache, a, Serials(70, 1)).ok()) << "which comes back for the next token";
  EXPECT_TRUE(HoldsToken(cache, a, 70, 70));
  EXPECT_FALSE(cache.Holds(a, 0, 0, 69));
  EXPECT_TRUE(*cache.Truncate(a, 30));
  EXPECT_EQ(cache.usage().used_bytes, RowBytes(cache));
}

TEST(KvSharing, WrongRangesAreRefused) {
  KvCache cache = *KvCache::Create(TwoLayers(2));
  const SequenceId a = *cache.CreateSequence(), b = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 20)).ok());
  ASSERT_TRUE(Append(cache, b, Serials(0, 5)).ok());
  const SequenceId unknown{77};
  const struct {
    Status status;
    const char* message;
  } cases[] = {
      {cache.Fork(unknown).status(), "Fork: sequence = 77"},
      {cache.Evict(unknown), "Evict: sequence = 77"},
      {cache.Copy(unknown, 0, 1, a), "Copy: sequence = 77"},
      {cache.Copy(a, 0, 1, unknown), "Copy: sequence = 77"},
      {cache.Copy(a, 5, 21, b), "Copy: begin = 5, end = 21; expected a range in 0..20"},
      {cache.Copy(a, 7, 6, b), "Copy: begin = 7, end = 6; expected a range in 0..20"},
      {cache.Copy(a, 4, 6, b), "begin = 4; the sequence it goes to has 5 tokens already"},
      {cache.Drop(a, -1, 3), "Drop: begin = -1, end = 3; expected a range in 0..20"},
      {cache.Drop(a, 3, 21), "Drop: begin = 3, end = 21; expected a range in 0..20"},
      {cache.Drop(unknown, 0, 0), "Drop: sequence = 77"},
      {cache.ExactLength(a, 21).status(), "ExactLength: length = 21; expected 0..20"},
      {cache.head_usage(unknown).status(), "head_usage: sequence = 77"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(c.status.message(), HasSubstr(c.message));
  }
  EXPECT_FALSE(cache.Holds(a, 0, 0, 20));
  EXPECT_FALSE(cache.Holds(a, 2, 0, 0));
  EXPECT_FALSE(cache.Holds(a, 0, -1, 0));
}

}  // namespace
}  // namespace manyhead
