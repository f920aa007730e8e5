#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/cache/kv_cache_impl.h"
#include "tests/cache/cache_testing.h"
#include "tests/support/temp_dir.h"

/// Beginnings that are kept, and found again by their ids. Here a token's id is its serial.

namespace manyhead {
namespace {

using ::testing::HasSubstr;

std::vector<TokenId> Ids(const std::vector<std::int64_t>& serials) {
  return {serials.begin(), serials.end()};
}

KvCacheParams Params(std::int64_t tokens = 1000, KvPolicy policy = KvPolicy::Full()) {
  KvCacheParams params;
  params.layers = {{2, 8, 0}, {1, 16, 24}};
  const KvHeadParams full{KvType::kF16, KvType::kF16, {}};
  params.heads = {{full, {KvType::kF16, KvType::kF16, policy}}, {full}};
  params.page_size = 16;
  params.max_tokens = 400;
  params.capacity_bytes = *KvCapacityBytes(params, 1, tokens);
  return params;
}

SequenceId MakeText(KvCache& cache, const std::vector<std::int64_t>& serials) {
  const SequenceId id = *cache.CreateSequence();
  EXPECT_TRUE(Append(cache, id, serials).ok());
  return id;
}

/// Length of what is found, 0 for nothing; checks that it holds these tokens.
std::int64_t Found(KvCache& cache, const std::vector<std::int64_t>& serials,
                   std::string_view key = "k") {
  const Result<std::optional<SequenceId>> fork = cache.ForkPrefix(key, Ids(serials));
  EXPECT_TRUE(fork.ok()) << fork.status().message();
  if (!fork->has_value()) return 0;
  const std::int64_t length = cache.length(**fork);
  EXPECT_GT(length, 0);
  for (std::int64_t s = 0; s < length; ++s)
    EXPECT_TRUE(HoldsToken(cache, **fork, s, serials[static_cast<std::size_t>(s)])) << s;
  EXPECT_TRUE(cache.FreeSequence(**fork).ok());
  return length;
}

std::vector<std::int64_t> Joined(std::vector<std::int64_t> a, const std::vector<std::int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(KvPrefix, FindsTheLongestBeginningAfterItsTextIsGone) {
  KvCache cache = *KvCache::Create(Params());
  EXPECT_EQ(Found(cache, Serials(0, 100)), 0);
  const SequenceId a = MakeText(cache, Serials(0, 100));
  const std::int64_t used = cache.usage().used_bytes;
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(0, 100)), a).ok());
  EXPECT_EQ(cache.usage().used_bytes, used) << "the pages are those of the text";
  EXPECT_EQ(cache.num_prefixes(), 1);
  EXPECT_EQ(cache.sequences(), std::vector{a});
  ASSERT_TRUE(cache.FreeSequence(a).ok());
  EXPECT_EQ(cache.usage().used_bytes, used / 7 * 6) << "96 of 100 tokens fill pages";

  EXPECT_EQ(Found(cache, Serials(0, 100)), 96);
  EXPECT_EQ(Found(cache, Serials(0, 300)), 96);
  EXPECT_EQ(Found(cache, Serials(0, 95)), 80);
  EXPECT_EQ(Found(cache, Joined(Serials(0, 50), Serials(700, 50))), 48);
  EXPECT_EQ(Found(cache, Serials(0, 15)), 0);
  EXPECT_EQ(Found(cache, Serials(1, 100)), 0);
  EXPECT_EQ(Found(cache, Serials(0, 100), "another model"), 0);

  // Who goes on from it changes nothing of it.
  const SequenceId b = **cache.ForkPrefix("k", Ids(Serials(0, 100)));
  ASSERT_TRUE(cache.Truncate(b, 90).ok());
  ASSERT_TRUE(Append(cache, b, Serials(500, 40)).ok());
  EXPECT_TRUE(HoldsToken(cache, b, 90, 500));
  EXPECT_EQ(Found(cache, Serials(0, 100)), 96);
  ASSERT_TRUE(cache.FreeSequence(b).ok());
  cache.ClearPrefixes();
  EXPECT_EQ(cache.usage().used_bytes, 0);
  EXPECT_EQ(Found(cache, Serials(0, 100)), 0);
}

TEST(KvPrefix, CollisionsOfHashesAreNoMatches) {
  KvCache cache = *KvCache::Create(Params());
  cache.impl().prefixes.hash_mask = 0;  // every page of every text has the same
  const SequenceId a = MakeText(cache, Serials(0, 100));
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(0, 100)), a).ok());
  EXPECT_EQ(Found(cache, Serials(500, 100)), 0);
  EXPECT_EQ(Found(cache, Joined(Serials(0, 40), Serials(700, 100))), 32);
  const SequenceId b = MakeText(cache, Serials(500, 100));
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(500, 100)), b).ok());
  EXPECT_EQ(cache.num_prefixes(), 2);
  EXPECT_EQ(Found(cache, Serials(500, 100)), 96);
  EXPECT_EQ(Found(cache, Serials(0, 100)), 96);
}

TEST(KvPrefix, KeepsWhatWasLastUsed) {
  KvCacheParams params = Params(3000);
  params.max_prefixes = 2;
  KvCache cache = *KvCache::Create(params);
  const auto store = [&](std::int64_t first, std::int64_t count) {
    const SequenceId id = MakeText(cache, Serials(first, count));
    EXPECT_TRUE(cache.StorePrefix("k", Ids(Serials(first, count)), id).ok());
    EXPECT_TRUE(cache.FreeSequence(id).ok());
  };
  store(100, 40);
  store(200, 40);
  store(100, 40);  // used again
  EXPECT_EQ(cache.num_prefixes(), 2);
  store(300, 40);
  EXPECT_EQ(Found(cache, Serials(200, 40)), 0);
  EXPECT_EQ(Found(cache, Serials(100, 40)), 32);
  store(400, 40);
  EXPECT_EQ(Found(cache, Serials(300, 40)), 0);
  EXPECT_EQ(Found(cache, Serials(100, 40)), 32);
  // A longer one stands for the shorter, which then takes no place.
  store(100, 90);
  EXPECT_EQ(cache.num_prefixes(), 2);
  EXPECT_EQ(Found(cache, Serials(400, 40)), 32);
  EXPECT_EQ(Found(cache, Serials(100, 40)), 32);
  EXPECT_EQ(Found(cache, Serials(100, 90)), 80);
  store(100, 50);
  EXPECT_EQ(Found(cache, Serials(100, 90)), 80);
  EXPECT_EQ(cache.num_prefixes(), 2);

  params.max_prefixes = 0;
  KvCache none = *KvCache::Create(params);
  const SequenceId id = MakeText(none, Serials(0, 40));
  EXPECT_TRUE(none.StorePrefix("k", Ids(Serials(0, 40)), id).ok());
  EXPECT_EQ(none.num_prefixes(), 0);
  params.max_prefixes = -1;
  EXPECT_THAT(KvCache::Create(params).status().message(), HasSubstr("max_prefixes = -1"));
}

// A shorter sequence may need tokens that windows have evicted: then fewer are taken, or none.
TEST(KvPrefix, PoliciesTakeOnlyWhatIsExact) {
  for (const KvPolicy& policy : {KvPolicy::Window(20), KvPolicy::Budget(48, 10)}) {
    KvCache cache = *KvCache::Create(Params(1000, policy));
    const SequenceId a = *cache.CreateSequence();
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(Append(cache, a, Serials(i * 16, 16)).ok());
    ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(0, 128)), a).ok());
    const auto length = [&](std::int64_t count) {
      const auto fork = cache.ForkPrefix("k", Ids(Serials(0, count)));
      if (!fork->has_value()) return std::int64_t{0};
      for (std::int64_t s = cache.length(**fork) - 19; s < cache.length(**fork); ++s)
        EXPECT_TRUE(policy.kind == KvPolicyKind::kBudget || cache.Holds(**fork, 0, 1, s)) << s;
      return cache.length(**fork);
    };
    EXPECT_EQ(length(200), 128);
    EXPECT_EQ(length(127), policy.kind == KvPolicyKind::kWindow ? 112 : 0);
    EXPECT_EQ(length(60), 0);
  }
}

TEST(KvPrefix, StandsBackForEveryRequest) {
  KvCacheParams params = Params(208);
  KvCache cache = *KvCache::Create(params);
  const SequenceId a = MakeText(cache, Serials(0, 100));
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(0, 100)), a).ok());
  ASSERT_TRUE(cache.FreeSequence(a).ok());
  const SequenceId b = MakeText(cache, Serials(300, 150));
  EXPECT_EQ(cache.num_prefixes(), 0) << "its pages were needed";
  for (std::int64_t s = 0; s < 150; ++s) ASSERT_TRUE(HoldsToken(cache, b, s, 300 + s));
  // A request that is too long for any sequence leaves them alone.
  ASSERT_TRUE(cache.Truncate(b, 50).ok());
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(300, 50)), b).ok());
  EXPECT_EQ(cache.Reserve(b, 1000).code(), StatusCode::kOutOfPages);
  EXPECT_EQ(cache.num_prefixes(), 1);
  EXPECT_EQ(cache.Reserve(b, 300).code(), StatusCode::kOutOfPages);
  EXPECT_EQ(cache.length(b), 50);
}

// The same random requests to a cache that keeps prefixes and to one that does not: the one refuses
// nothing that the other grants.
TEST(KvPrefix, NoRequestFailsThatWouldNotWithoutThem) {
  std::mt19937 random(17);
  const auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
  KvCache plain = *KvCache::Create(Params(300)), keeping = *KvCache::Create(Params(300));
  struct Text {
    SequenceId plain, keeping;
    std::vector<std::int64_t> serials;
  };
  std::vector<Text> texts;
  int refused = 0, kept = 0;
  for (int step = 0; step < 4000; ++step) {
    const std::int64_t choice = below(10);
    if (texts.empty() || (choice == 0 && texts.size() < 5)) {
      const auto one = plain.CreateSequence(), two = keeping.CreateSequence();
      ASSERT_TRUE(!one.ok() || two.ok()) << step;
      if (one.ok()) texts.push_back({*one, *two, {}});
      if (!one.ok() && two.ok()) {
        ASSERT_TRUE(keeping.FreeSequence(*two).ok());
      }
      continue;
    }
    Text& text = texts[static_cast<std::size_t>(below(static_cast<std::uint32_t>(texts.size())))];
    if (choice == 1) {
      ASSERT_TRUE(plain.FreeSequence(text.plain).ok() && keeping.FreeSequence(text.keeping).ok());
      std::swap(text, texts.back());
      texts.pop_back();
    } else if (choice < 6) {
      const auto more = Serials(below(3) * 1000 + std::ssize(text.serials), 1 + below(60));
      const Status one = Append(plain, text.plain, more), two = Append(keeping, text.keeping, more);
      ASSERT_EQ(one.ok(), two.ok()) << step << " " << one.message() << " " << two.message();
      refused += !one.ok();
      if (one.ok()) text.serials = Joined(text.serials, more);
    } else {
      const Status status = keeping.StorePrefix("k", Ids(text.serials), text.keeping);
      ASSERT_TRUE(status.ok() || status.code() == StatusCode::kOutOfPages);
      const auto fork = keeping.ForkPrefix("k", Ids(text.serials));
      if (fork.ok() && fork->has_value()) {
        const std::int64_t length = keeping.length(**fork);
        for (std::int64_t s = 0; s < length; s += 7)
          ASSERT_TRUE(HoldsToken(keeping, **fork, s, text.serials[static_cast<std::size_t>(s)]));
        ASSERT_TRUE(keeping.FreeSequence(**fork).ok());
        ++kept;
      }
    }
    const KvUsage usage = keeping.usage();
    ASSERT_LE(usage.used_bytes + usage.table_bytes, usage.capacity_bytes);
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(kept, 200);
  for (const Text& text : texts) ASSERT_TRUE(keeping.FreeSequence(text.keeping).ok());
  keeping.ClearPrefixes();
  EXPECT_EQ(keeping.usage().used_bytes, 0);
  EXPECT_TRUE(keeping.sequences().empty());
}

TEST(KvPrefix, AreNobodysSequences) {
  const testing::TempDir folder;
  KvCache cache = *KvCache::Create(Params());
  const SequenceId a = MakeText(cache, Serials(0, 40));
  EXPECT_THAT(cache.StorePrefix("k", Ids(Serials(0, 41)), a).message(),
              HasSubstr("tokens has 41 ids; the sequence has 40 tokens"));
  EXPECT_THAT(cache.StorePrefix("k", {}, SequenceId{9}).message(), HasSubstr("sequence = 9"));
  ASSERT_TRUE(cache.StorePrefix("k", {}, a).ok());
  EXPECT_EQ(cache.num_prefixes(), 0);
  ASSERT_TRUE(cache.StorePrefix("k", Ids(Serials(0, 40)), a).ok());
  const SequenceId guessed{static_cast<std::int32_t>(a) + 1};
  EXPECT_EQ(cache.length(guessed), -1);
  EXPECT_FALSE(cache.FreeSequence(guessed).ok());
  ASSERT_TRUE(cache.Save(folder.File("s"), cache.sequences()).ok());
  KvCache other = *KvCache::Create(Params());
  EXPECT_EQ(other.Restore(folder.File("s"))->sequences.size(), 1U);
}

}  // namespace
}  // namespace manyhead
