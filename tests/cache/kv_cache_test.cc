#include "manyhead/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/memory.h"
#include "tests/cache/cache_testing.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

/// One layer of one head, page_size 16: a page is 16 * (16 + 16) * 2 = 1024 bytes. One sequence can
/// fill `pages` of them.
KvCacheParams OneHead(std::int64_t pages, std::int64_t max_tokens) {
  KvCacheParams params;
  params.layers = {{1, 16, 16}};
  params.page_size = 16;
  params.max_tokens = max_tokens;
  if (pages > 0) params.capacity_bytes = *KvCapacityBytes(params, 1, pages * 16);
  return params;
}

std::int64_t SumOf(const KvUsage& usage) {
  std::int64_t sum = 0;
  for (const auto& layer : usage.head_bytes) sum = std::accumulate(layer.begin(), layer.end(), sum);
  return sum;
}

std::int64_t UsedBy(const KvCache& cache, SequenceId sequence) {
  const Result<KvUsage> usage = cache.usage(sequence);
  EXPECT_TRUE(usage.ok());
  EXPECT_EQ(SumOf(*usage), usage->used_bytes);
  return usage->used_bytes;
}

TEST(KvCache, RefusesWhatIsOutOfRangeNamingBothValues) {
  const struct {
    std::function<void(KvCacheParams&)> change;
    const char* message;
  } cases[] = {
      {[](auto& p) { p.layers.clear(); }, "layers has 0 entries"},
      {[](auto& p) { p.layers[0].head_dim = 0; }, "layers[0].head_dim = 0; expected 1..1024"},
      {[](auto& p) { p.layers[0].head_dim = 1025; }, "layers[0].head_dim = 1025; expected 1..1024"},
      {[](auto& p) {
         p.layers.push_back({2, 8, 1025});
       },
       "layers[1].head_dim_v = 1025"},
      {[](auto& p) { p.layers[0].head_dim_v = -1; }, "layers[0].head_dim_v = -1"},
      {[](auto& p) { p.layers[0].num_kv_heads = 0; }, "layers[0].num_kv_heads = 0"},
      {[](auto& p) { p.layers[0].num_kv_heads = kMaxInt64; }, "num_kv_heads = 9223372036854775807"},
      {[](auto& p) { p.page_size = 24; }, "page_size = 24; expected a multiple of 16"},
      {[](auto& p) { p.page_size = -16; }, "page_size = -16"},
      {[](auto& p) { p.page_size = kMaxInt64 - 15; }, "page_size = 9223372036854775792"},
      {[](auto& p) { p.k_type = static_cast<KvType>(9); }, "k_type = 9; expected 0..4"},
      {[](auto& p) { p.v_type = static_cast<KvType>(5); }, "v_type = 5; expected 0..4"},
      {[](auto& p) { p.capacity_bytes = *KvCapacityBytes(p, 1, 1) - 1; },
       "what a sequence of one token takes"},
      {[](auto& p) { p.capacity_bytes = -1; }, "capacity_bytes = -1 is less than"},
      {[](auto& p) { p.max_tokens = 0; }, "max_tokens = 0; expected 1 or more"},
      {[](auto& p) { p.max_tokens = -5; }, "max_tokens = -5; expected 1 or more"},
  };
  for (const auto& c : cases) {
    KvCacheParams params = OneHead(8, 80);
    c.change(params);
    const Result<KvCache> cache = KvCache::Create(params);
    ASSERT_FALSE(cache.ok()) << c.message;
    EXPECT_EQ(cache.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(cache.status().message(), HasSubstr(c.message));
    EXPECT_THAT(cache.status().message(), HasSubstr("KvCache::Create: "));
  }
  KvCacheParams params = OneHead(8, 80);
  params.isa = static_cast<Isa>(77);
  EXPECT_EQ(KvCache::Create(params).status().code(), StatusCode::kUnsupported);
  params = OneHead(8, 80);
  params.capacity_bytes = kMaxInt64;
  EXPECT_EQ(KvCache::Create(params).status().code(), StatusCode::kUnsupported);
}

TEST(KvCache, DefaultsAreFilledIn) {
  KvCacheParams params;
  params.layers = {{2, 64, 0}};
  params.capacity_bytes = 1 << 20;
  params.max_tokens = kMaxInt64;
  KvCache cache = *KvCache::Create(params);
  EXPECT_EQ(cache.params().page_size, 64);
  EXPECT_EQ(cache.params().layers[0].head_dim_v, 64);
  EXPECT_EQ(*cache.params().isa, *SelectIsa());
  EXPECT_EQ(cache.length(*cache.CreateSequence()), 0);
}

TEST(KvCache, CallsWithWrongArgumentsChangeNothing) {
  KvCache cache = *KvCache::Create(OneHead(8, 80));
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 20)).ok());
  const std::vector<float> nan(16 * 40, NAN);
  const SequenceId unknown = static_cast<SequenceId>(static_cast<std::int32_t>(id) + 1);
  const auto write = [&](SequenceId sequence, std::int64_t layer, std::int64_t position,
                         std::int64_t count, std::int64_t k_stride = 0, std::int64_t v_stride = 0) {
    return cache.Write(sequence, layer, position, count, nan.data(), nan.data(), k_stride,
                       v_stride);
  };
  float row[16];
  const struct {
    Status status;
    const char* message;
  } cases[] = {
      {cache.Reserve(unknown, 1), "Reserve: sequence = 1"},
      {cache.Reserve(static_cast<SequenceId>(-1), 1), "Reserve: sequence = -1"},
      {cache.Reserve(id, -1), "count = -1; expected 0 or more"},
      {cache.FreeSequence(unknown), "FreeSequence: sequence = 1"},
      {cache.Truncate(unknown, 0).status(), "Truncate: sequence = 1"},
      {cache.Truncate(id, 21).status(), "length = 21; expected 0..20"},
      {cache.Truncate(id, -1).status(), "length = -1; expected 0..20"},
      {write(unknown, 0, 0, 1), "Write: sequence = 1"},
      {write(id, 1, 0, 1), "layer = 1; expected 0..0"},
      {write(id, -1, 0, 1), "layer = -1; expected 0..0"},
      {write(id, 0, -1, 1), "position = -1, count = 1; only 20 tokens"},
      {write(id, 0, 0, -1), "position = 0, count = -1; only 20 tokens"},
      {write(id, 0, 19, 2), "position = 19, count = 2; only 20 tokens"},
      {write(id, 0, 1, kMaxInt64), "count = 9223372036854775807; only 20 tokens"},
      {write(id, 0, kMaxInt64, 1), "position = 9223372036854775807, count = 1"},
      {write(id, 0, 0, 1, 15), "k_stride = 15; expected 0 or at least 16"},
      {write(id, 0, 0, 1, 0, -16), "v_stride = -16; expected 0 or at least 16"},
      {cache.Write(id, 0, 0, 1, nullptr, nan.data()), "k is null; expected 1 rows"},
      {cache.Write(id, 0, 0, 1, nan.data(), nullptr), "v is null; expected 1 rows"},
      {cache.Read(id, 0, 1, 0, row, row), "head = 1; expected 0..0"},
      {cache.Read(id, 0, 0, 20, row, row), "position = 20; expected 0..19"},
      {cache.Read(id, 2, 0, 0, row, row), "layer = 2; expected 0..0"},
      {cache.usage(unknown).status(), "usage: sequence = 1"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(c.status.message(), HasSubstr(c.message));
  }
  EXPECT_EQ(cache.length(unknown), -1);
  EXPECT_EQ(cache.length(id), 20);
  EXPECT_EQ(cache.usage().used_bytes, 2048);
  for (std::int64_t s = 0; s < 20; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
  EXPECT_TRUE(cache.Write(id, 0, 20, 0, nullptr, nullptr).ok());
  EXPECT_TRUE(cache.Read(id, 0, 0, 19, nullptr, nullptr).ok());
  EXPECT_TRUE(cache.Reserve(id, 0).ok());
}

// NVIDIA/Model-Optimizer#2482: bytes per token from the declared head_dim and the KV heads, and the
// figure is what whole pages take.
TEST(KvCache, BytesPerTokenAreThoseOfThePages) {
  const struct {
    std::int64_t layers, num_kv_heads, head_dim, bytes;
  } cases[] = {{40, 8, 128, 163840}, {24, 8, 64, 49152}};
  for (const auto& c : cases) {
    KvCacheParams params;
    params.layers.assign(c.layers, {c.num_kv_heads, c.head_dim, 0});
    params.max_tokens = 1000;
    params.capacity_bytes = *KvCapacityBytes(params, 1, 1000);
    KvCache cache = *KvCache::Create(params);
    EXPECT_EQ(cache.bytes_per_token(), c.bytes);
    const SequenceId id = *cache.CreateSequence();
    ASSERT_TRUE(cache.Reserve(id, 1000).ok());
    EXPECT_EQ(cache.usage().used_bytes, 1024 * c.bytes) << "16 pages of 64 tokens";
    EXPECT_EQ(SumOf(cache.usage()), 1024 * c.bytes);
    EXPECT_EQ(cache.usage().head_bytes.back().back(), 1024 * c.head_dim * 4);
  }
}

// gittensor-ai-lab/sparkinfer#110: growing charges the increment only, and the length is checked as
// a whole.
TEST(KvCache, GrowingChargesTheIncrement) {
  KvCache cache = *KvCache::Create(OneHead(8, 5 * 16));
  const SequenceId a = *cache.CreateSequence();
  const auto reserve_up_to = [&](std::int64_t tokens) {
    return cache.Reserve(a, tokens - cache.length(a));
  };
  EXPECT_TRUE(reserve_up_to(40).ok());
  EXPECT_EQ(cache.usage().used_bytes, 3 * 1024);
  EXPECT_TRUE(reserve_up_to(40).ok());
  EXPECT_EQ(cache.usage().used_bytes, 3 * 1024);
  EXPECT_TRUE(reserve_up_to(50).ok());
  EXPECT_EQ(cache.usage().used_bytes, 4 * 1024);
  const Status status = reserve_up_to(81);
  EXPECT_EQ(status.code(), StatusCode::kOutOfPages);
  EXPECT_THAT(status.message(), HasSubstr("50 + 31 tokens; max_tokens = 80"));
  EXPECT_EQ(UsedBy(cache, a), 4 * 1024);
  EXPECT_EQ(cache.length(a), 50);
  const KvUsage usage = cache.usage();
  EXPECT_EQ(usage.capacity_bytes - usage.used_bytes - usage.table_bytes, 4 * 1024);
  EXPECT_EQ(cache.Reserve(a, kMaxInt64).code(), StatusCode::kOutOfPages);
}

// ggml-org/llama.cpp#3817: past the capacity is a code, earlier rows stay, smaller requests work.
TEST(KvCache, FullCacheKeepsItsRows) {
  for (const bool by_pages : {false, true}) {  // the pool or max_tokens is what is exhausted
    const KvCacheParams params = by_pages ? OneHead(4, 1000) : OneHead(100, 64);
    for (const std::int64_t prefill : {0, 64, 60}) {
      KvCache cache = *KvCache::Create(params);
      const SequenceId id = *cache.CreateSequence();
      ASSERT_TRUE(Append(cache, id, Serials(0, prefill)).ok());
      const std::int64_t before = cache.usage().used_bytes;
      const std::int64_t chunk = prefill == 0 ? 65 : prefill == 64 ? 1 : 8;
      const Status status = Append(cache, id, Serials(500, chunk));
      EXPECT_EQ(status.code(), StatusCode::kOutOfPages);
      EXPECT_THAT(status.message(),
                  HasSubstr(by_pages ? "of capacity_bytes = " : "max_tokens = 64"));
      EXPECT_EQ(cache.length(id), prefill);
      EXPECT_EQ(cache.usage().used_bytes, before);
      for (std::int64_t s = 0; s < prefill; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
      if (prefill == 64) continue;
      EXPECT_TRUE(Append(cache, id, Serials(prefill, 64 - prefill)).ok());
      for (std::int64_t s = 0; s < 64; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
    }
  }
}

// Layers of three page sizes, of which only the last would not fit.
TEST(KvCache, ReserveOverAllHeadsIsAllOrNothing) {
  KvCacheParams params;
  params.layers = {{3, 16, 16}, {1, 128, 64}, {2, 8, 300}, {1, 16, 16}};
  params.page_size = 16;
  params.max_tokens = 1000;
  params.capacity_bytes = *KvCapacityBytes(params, 2, 16);
  params.capacity_bytes += 16 * KvCache::Create(params)->bytes_per_token() - 64;
  KvCache cache = *KvCache::Create(params);
  const SequenceId a = *cache.CreateSequence(), b = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 16)).ok());
  ASSERT_TRUE(Append(cache, b, Serials(100, 10)).ok());
  const KvUsage before = cache.usage();
  EXPECT_EQ(cache.Reserve(a, 1).code(), StatusCode::kOutOfPages);
  EXPECT_EQ(cache.usage().used_bytes, before.used_bytes);
  EXPECT_EQ(cache.usage().head_bytes, before.head_bytes);
  EXPECT_EQ(cache.length(a), 16);
  EXPECT_TRUE(Append(cache, b, Serials(110, 6)).ok()) << "still fits in the page it has";
  ASSERT_TRUE(cache.FreeSequence(a).ok());
  EXPECT_TRUE(Append(cache, b, Serials(116, 16)).ok());
  for (std::int64_t s = 0; s < 32; ++s) EXPECT_TRUE(HoldsToken(cache, b, s, 100 + s));
}

// The cache's part of ggml-org/llama.cpp#1585: a prompt shorter than what is stored.
TEST(KvCache, TruncateForgetsTheRest) {
  KvCache cache = *KvCache::Create(OneHead(8, 80));
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(1, 6)).ok());
  ASSERT_TRUE(cache.Truncate(id, 3).ok());
  EXPECT_EQ(cache.length(id), 3);
  EXPECT_EQ(cache.impl().HeadView(id, 0, 0).length, 3);
  float row[16];
  EXPECT_FALSE(cache.Read(id, 0, 0, 3, row, row).ok());
  ASSERT_TRUE(Append(cache, id, {77, 78}).ok());
  const std::int64_t expected[] = {1, 2, 3, 77, 78};
  for (std::int64_t s = 0; s < 5; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, expected[s]));

  ASSERT_TRUE(Append(cache, id, Serials(200, 60)).ok());
  EXPECT_EQ(cache.usage().used_bytes, 5 * 1024);
  for (const auto& [length, pages] : {std::pair<int, int>{49, 4}, {48, 3}, {1, 1}, {0, 0}}) {
    ASSERT_TRUE(cache.Truncate(id, length).ok());
    EXPECT_EQ(cache.usage().used_bytes, pages * 1024) << length;
    EXPECT_EQ(UsedBy(cache, id), pages * 1024) << length;
  }
}

// google/gemma.cpp#608: chunks and single tokens from rows wider than their contents give the bytes
// of a one-shot prefill.
TEST(KvCache, ChunksFromPaddedRowsEqualOneShot) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    for (const std::int64_t pad : {16, 48}) {
      KvCacheParams params;
      params.layers = {{3, 80, 80}, {3, 80, 80}};
      params.k_type = params.v_type = type;
      params.max_tokens = 1024;
      params.capacity_bytes = *KvCapacityBytes(params, 2, 610);
      KvCache cache = *KvCache::Create(params);
      const SequenceId chunked = *cache.CreateSequence(), whole = *cache.CreateSequence();
      ASSERT_TRUE(Append(cache, whole, Serials(0, 610)).ok());
      std::int64_t position = 0;
      for (std::int64_t count : {256, 256, 88, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}) {
        ASSERT_TRUE(Append(cache, chunked, Serials(position, count), pad, NAN).ok());
        position += count;
      }
      ASSERT_EQ(position, 610);
      for (std::int64_t s = 0; s < 610; ++s) {
        ASSERT_TRUE(HoldsToken(cache, chunked, s, s)) << s;
        ASSERT_TRUE(HoldsToken(cache, whole, s, s)) << s;
      }
    }
  }
}

TEST(KvCache, FreedIdsStayInvalid) {
  KvCache cache = *KvCache::Create(OneHead(8, 80));
  std::vector<SequenceId> old;
  for (int i = 0; i < 5000; ++i) {  // more often than one slot has generations
    const SequenceId id = *cache.CreateSequence();
    ASSERT_GE(static_cast<std::int32_t>(id), 0);
    ASSERT_TRUE(cache.Reserve(id, 1).ok());
    ASSERT_TRUE(cache.FreeSequence(id).ok());
    old.push_back(id);
  }
  const SequenceId live = *cache.CreateSequence();
  for (const SequenceId id : old) {
    ASSERT_NE(id, live);
    ASSERT_EQ(cache.length(id), -1);
    ASSERT_FALSE(cache.FreeSequence(id).ok());
  }
  EXPECT_EQ(cache.length(live), 0);
  EXPECT_EQ(cache.usage().used_bytes, 0);
}

TEST(KvCache, MovesWithItsSequences) {
  KvCache first = *KvCache::Create(OneHead(8, 80));
  const SequenceId id = *first.CreateSequence();
  ASSERT_TRUE(Append(first, id, Serials(0, 20)).ok());
  KvCache second = std::move(first);
  EXPECT_TRUE(HoldsToken(second, id, 19, 19));
}

// Memory of the process, not only the count: pages appear with their rows and go when freed.
TEST(KvCache, ResidentMemoryFollowsUsage) {
  constexpr std::int64_t kSlack = 4 << 20;
  KvCacheParams params;
  params.layers.assign(8, {4, 64, 64});
  params.max_tokens = 1 << 20;
  params.capacity_bytes = std::int64_t{1} << 36;
  KvCache cache = *KvCache::Create(params);
  const SequenceId a = *cache.CreateSequence(), b = *cache.CreateSequence();
  const Rows rows = MakeRows(cache.params().layers[0], 0, Serials(0, 64));
  const auto append_block = [&](SequenceId id) {  // allocates nothing but pages
    ASSERT_TRUE(cache.Reserve(id, 64).ok());
    for (std::int64_t l = 0; l < 8; ++l)
      ASSERT_TRUE(cache.Write(id, l, cache.length(id) - 64, 64, rows.k.data(), rows.v.data()).ok());
  };
  append_block(a);
  const std::int64_t before = ResidentBytes() - cache.usage().used_bytes;
  for (int i = 1; i < 64; ++i) append_block(i % 2 != 0 ? b : a);
  EXPECT_EQ(cache.usage().used_bytes, 64 * 64 * 8 * 4 * 64 * 2 * 2);  // 32 MiB
  EXPECT_LE(std::abs(ResidentBytes() - (before + cache.usage().used_bytes)), kSlack);
  ASSERT_TRUE(cache.FreeSequence(a).ok());
  EXPECT_LE(std::abs(ResidentBytes() - (before + cache.usage().used_bytes)), kSlack);
  ASSERT_TRUE(cache.Truncate(b, 64).ok());
  EXPECT_LE(std::abs(ResidentBytes() - (before + cache.usage().used_bytes)), kSlack);
  EXPECT_EQ(cache.usage().used_bytes, 64 * 8 * 4 * 64 * 2 * 2);
  std::vector<float> row(64);
  ASSERT_TRUE(cache.Read(b, 7, 3, 63, row.data(), nullptr).ok());
  for (std::int64_t d = 0; d < 64; ++d) EXPECT_EQ(row[d], KElement(63, 0, 3, d));
}

/// The pages of every head, in order.
std::vector<unsigned char> PageBytes(KvCache& cache, SequenceId id) {
  std::vector<unsigned char> bytes;
  const std::int64_t page_size = cache.params().page_size;
  for (std::size_t l = 0; l < cache.params().layers.size(); ++l) {
    for (std::int64_t h = 0; h < cache.params().layers[l].num_kv_heads; ++h) {
      const kernels::KvHeadView view = cache.impl().HeadView(id, static_cast<std::int64_t>(l), h);
      for (std::int64_t p = 0; p * page_size < view.length; ++p) {
        const auto* page = reinterpret_cast<const unsigned char*>(view.pages[p]);
        bytes.insert(bytes.end(), page, page + view.layout->page_bytes);
      }
    }
  }
  return bytes;
}

// Denormal numbers too: the threads of a region flush them in arithmetic, storing must not.
TEST(KvCache, SameBytesForEveryThreadCountAndInstructionSet) {
  std::vector<std::vector<unsigned char>> results;
  for (const KvType type :
       {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    results.clear();
    for (const Isa isa : SupportedIsas()) {
      for (const int threads : {1, 2, 3, 8}) {
        KvCacheParams params;
        params.layers = {{3, 72, 20}};
        params.k_type = params.v_type = type;
        params.max_tokens = 300;
        params.capacity_bytes = *KvCapacityBytes(params, 1, 300);
        params.isa = isa;
        KvCache cache = *KvCache::Create(params);
        const SequenceId id = *cache.CreateSequence();
        ASSERT_TRUE(cache.Reserve(id, 217).ok());
        std::vector<float> k(217 * 3 * 72), v(217 * 3 * 20);
        for (std::size_t i = 0; i < k.size(); ++i)
          k[i] =
              std::ldexp(1.0F + static_cast<float>(i % 89) / 89, static_cast<int>(i % 250) - 145);
        for (std::size_t i = 0; i < v.size(); ++i)
          v[i] = std::ldexp(-1.0F - static_cast<float>(i % 61) / 61, static_cast<int>(i % 60) - 30);
        std::int64_t position = 0;
        for (const std::int64_t count : {150, 1, 66}) {
          RunTeam(threads, [&](Worker& worker) {
            const KvRows rows[] = {{id, position, count, position}};
            cache.impl().WriteOn(worker, 0, rows, k.data(), v.data(), 216, 60);
          });
          position += count;
        }
        results.push_back(PageBytes(cache, id));
        ASSERT_EQ(results.back(), results.front())
            << KvTypeName(type) << " " << IsaName(isa) << " threads " << threads;
        std::vector<float> row(72);
        if (type != KvType::kF32) continue;
        ASSERT_TRUE(cache.Read(id, 0, 1, 0, row.data(), nullptr).ok());
        ASSERT_EQ(std::memcmp(row.data(), k.data() + 72, 72 * sizeof(float)), 0);
      }
    }
  }
}

TEST(KvCapacityBytes, IsExactlyWhatTheRequestTakes) {
  for (const std::int64_t head_dim : {1, 7, 64, 80, 1000})
    for (const std::int64_t head_dim_v : {0, 1, 96})
      for (const std::int64_t page_size : {0, 16, 48})
        for (const std::int64_t tokens : {1, 15, 16, 17, 64, 65, 200})
          for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
            KvCacheParams params;
            params.layers = {{2, head_dim, head_dim_v}, {1, 33, 0}, {3, head_dim, 0}};
            params.page_size = page_size;
            params.k_type = type;
            params.max_tokens = 1 << 20;
            params.capacity_bytes = *KvCapacityBytes(params, 3, tokens);
            KvCache cache = *KvCache::Create(params);
            for (int i = 0; i < 3; ++i)
              ASSERT_TRUE(cache.Reserve(*cache.CreateSequence(), tokens).ok());
            const KvUsage usage = cache.usage();
            ASSERT_EQ(usage.used_bytes + usage.table_bytes, params.capacity_bytes);
            ASSERT_EQ(SumOf(usage), usage.used_bytes);
            ASSERT_EQ(cache.CreateSequence().status().code(), StatusCode::kOutOfPages);
            params.capacity_bytes -= 1;
            Result<KvCache> smaller = KvCache::Create(params);
            ASSERT_TRUE(smaller.ok());
            ASSERT_TRUE(smaller->Reserve(*smaller->CreateSequence(), tokens).ok());
            ASSERT_TRUE(smaller->Reserve(*smaller->CreateSequence(), tokens).ok());
            ASSERT_FALSE(smaller->Reserve(*smaller->CreateSequence(), tokens).ok());
          }
}

TEST(KvCapacityBytes, RefusesWhatHasNoAnswer) {
  const KvCacheParams params = OneHead(0, 0);
  const struct {
    std::int64_t sequences, tokens;
    const char* message;
  } cases[] = {{0, 1, "sequences = 0, tokens = 1; expected 1 or more"},
               {1, -3, "tokens = -3; expected 1 or more"},
               {1, kMaxInt64, "tokens = 9223372036854775807 need more than 2^63 - 1 bytes"},
               {kMaxInt64, 17, "sequences = 9223372036854775807, tokens = 17 need more"}};
  for (const auto& c : cases) {
    const Result<std::int64_t> bytes = KvCapacityBytes(params, c.sequences, c.tokens);
    ASSERT_FALSE(bytes.ok()) << c.message;
    EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(bytes.status().message(), HasSubstr(c.message));
  }
  KvCacheParams endless = params;
  endless.layers.assign(1 << 18, {65536, 1024, 1024});
  endless.page_size = 65536;
  endless.k_type = endless.v_type = KvType::kF32;
  EXPECT_THAT(KvCapacityBytes(endless, 1, 1).status().message(),
              HasSubstr("layers has 17179869184 KV heads; expected up to 1048576"));
  endless.layers.assign(16, {65536, 1024, 1024});
  EXPECT_THAT(KvCapacityBytes(endless, 1 << 20, 1).status().message(),
              HasSubstr("sequences = 1048576, tokens = 1 need more than 2^63 - 1 bytes"));
  EXPECT_THAT(KvCapacityBytes(params, 1, 1, -2).status().message(),
              HasSubstr("step = -2; expected 0 or more"));
  KvCacheParams wrong = params;
  wrong.layers[0].head_dim = 1025;
  EXPECT_THAT(KvCapacityBytes(wrong, 1, 1).status().message(),
              HasSubstr("KvCapacityBytes: layers[0].head_dim = 1025"));
}

}  // namespace
}  // namespace manyhead
