#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/cache/cache_testing.h"
#include "tests/cache/kv_model.h"

/// A separate program: operator new fails on request, at each allocation in turn.

namespace {
std::int64_t allocations_left = -1;  // negative: never fails
}  // namespace

// Inlined, GCC would see free() meet a pointer from new and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// The default ones call those above, but not where a sanitizer brings its own.
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { operator delete(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace manyhead {
namespace {

/// Runs fn with the n-th allocation failing, for n = 0, 1, ... until it needs fewer; calls
/// after_failure() each time it threw. Returns how often it did.
template <class Fn, class Check>
int FailEachAllocation(Fn&& fn, Check&& after_failure) {
  for (int n = 0;; ++n) {
    allocations_left = n;
    try {
      fn();
      allocations_left = -1;
      return n;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      after_failure();
    }
  }
}

KvCacheParams Params() {
  KvCacheParams params;
  params.layers = {{2, 16, 0}, {1, 8, 24}};
  params.page_size = 16;
  params.max_tokens = 1 << 20;
  params.capacity_bytes = *KvCapacityBytes(params, 4, 1 << 14);
  params.isa = Isa::kScalar;
  return params;
}

TEST(KvCacheAllocation, FailedReserveChangesNothing) {
  KvCache cache = *KvCache::Create(Params());
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 100)).ok());
  const KvUsage before = cache.usage();
  const int failures = FailEachAllocation([&] { ASSERT_TRUE(cache.Reserve(id, 5000).ok()); },
                                          [&] {
                                            EXPECT_EQ(cache.length(id), 100);
                                            EXPECT_EQ(cache.usage().used_bytes, before.used_bytes);
                                            EXPECT_EQ(cache.usage().head_bytes, before.head_bytes);
                                            EXPECT_TRUE(HoldsToken(cache, id, 99, 99));
                                            EXPECT_TRUE(Append(cache, id, Serials(100, 16)).ok())
                                                << "a smaller request still works";
                                            EXPECT_TRUE(cache.Truncate(id, 100).ok());
                                          });
  EXPECT_GE(failures, 4) << "of seven growths, since those before the failure are kept";
  EXPECT_EQ(cache.length(id), 5100);
  for (std::int64_t s = 0; s < 100; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
}

TEST(KvCacheAllocation, FailedCreateSequenceChangesNothing) {
  KvCache cache = *KvCache::Create(Params());
  const SequenceId first = *cache.CreateSequence();
  for (int i = 0; i < 20; ++i) {
    SequenceId id{};
    const int failures = FailEachAllocation([&] { id = *cache.CreateSequence(); },
                                            [&] { EXPECT_EQ(cache.length(first), 0); });
    EXPECT_GE(failures, 4) << "the heads and their tables";
    EXPECT_NE(id, first);
    ASSERT_TRUE(Append(cache, id, Serials(i, 3)).ok());
    if (i % 3 == 0) {
      ASSERT_TRUE(cache.FreeSequence(id).ok());
    }
  }
}

TEST(KvCacheAllocation, FailedCreateLeavesNothingBehind) {
  const KvCacheParams params = Params();
  const int failures =
      FailEachAllocation([&] { ASSERT_TRUE(KvCache::Create(params).ok()); }, [] {});
  EXPECT_GE(failures, 5);
}

TEST(KvCacheAllocation, FailedPrefixesChangeNothing) {
  KvCache cache = *KvCache::Create(Params());
  const SequenceId a = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 100)).ok());
  const std::vector<TokenId> ids(100, 7);
  const KvUsage before = cache.usage();
  const auto unchanged = [&](std::int64_t prefixes, const KvUsage& usage) {
    EXPECT_EQ(cache.num_prefixes(), prefixes);
    EXPECT_EQ(cache.usage().used_bytes, usage.used_bytes);
    EXPECT_EQ(cache.usage().table_bytes, usage.table_bytes);
    EXPECT_EQ(cache.sequences(), std::vector{a});
  };
  int failures = FailEachAllocation(
      [&] { ASSERT_TRUE(cache.StorePrefix("a long key for a heap", ids, a).ok()); },
      [&] { unchanged(0, before); });
  EXPECT_GE(failures, 8);
  ASSERT_EQ(cache.num_prefixes(), 1);
  const KvUsage after = cache.usage();
  std::optional<SequenceId> fork;
  failures = FailEachAllocation([&] { fork = *cache.ForkPrefix("a long key for a heap", ids); },
                                [&] { unchanged(1, after); });
  EXPECT_GE(failures, 5);
  ASSERT_TRUE(fork.has_value());
  EXPECT_EQ(cache.length(*fork), 96);
}

// Any operation at any moment of a random history: failing at each of its allocations in turn, it
// leaves the cache as the plain one that knows of no failure.
TEST(KvCacheAllocation, EveryOperationFailsWithoutATrace) {
  KvCache cache = *KvCache::Create(testing::ModelParams(16));
  testing::KvModel* checked = nullptr;
  int failures = 0;
  testing::KvModel model(std::move(cache), 99, [&](const std::function<void()>& call) {
    failures += FailEachAllocation(call, [&] { checked->CheckUsage(); });
  });
  checked = &model;
  for (int step = 0; step < 1500; ++step) {
    SCOPED_TRACE(step);
    model.Step();
    if (step % 300 == 0) model.CheckContents();
    if (HasFatalFailure()) return;
  }
  model.FreeAll();
  EXPECT_GT(failures, 1000);
}

// Decode steps inside a page, and freeing, must not need memory.
TEST(KvCacheAllocation, StepsInsideAPageAllocateNothing) {
  KvCache cache = *KvCache::Create(Params());
  const SequenceId id = *cache.CreateSequence();
  const std::vector<float> row(2 * 24, 1.0F);
  ASSERT_TRUE(cache.Reserve(id, 64 * 16 - 15).ok());
  allocations_left = 0;
  for (std::int64_t i = 0; i < 15; ++i) {
    ASSERT_TRUE(cache.Reserve(id, 1).ok());
    for (std::int64_t l = 0; l < 2; ++l)
      ASSERT_TRUE(cache.Write(id, l, cache.length(id) - 1, 1, row.data(), row.data()).ok());
  }
  ASSERT_TRUE(cache.Truncate(id, 10).ok());
  ASSERT_TRUE(cache.Reserve(id, 64 * 16 - 10).ok()) << "a table keeps the room it had";
  ASSERT_TRUE(cache.FreeSequence(id).ok());
  allocations_left = -1;
}

}  // namespace
}  // namespace manyhead
