#include "runtime/memory/kv_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "manyhead/kv_cache.h"

namespace manyhead {
namespace {

/// A cache whose `sequences` sequences grew in steps, one step of each in turn, and its last
/// eviction.
KvCache Grow(KvCacheParams params, std::int64_t sequences, std::int64_t step) {
  params.capacity_bytes = *KvCapacityBytes(params, sequences, params.max_tokens, step);
  KvCache cache = *KvCache::Create(params);
  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < sequences; ++i) ids.push_back(*cache.CreateSequence());
  for (std::int64_t length = 0; length < params.max_tokens; length += step)
    for (const SequenceId id : ids) {
      const Status status = cache.Reserve(id, std::min(step, params.max_tokens - length));
      EXPECT_TRUE(status.ok()) << status.message();
    }
  for (const SequenceId id : ids) EXPECT_TRUE(cache.Evict(id).ok());
  return cache;
}

void ExpectSame(const KvPlan& plan, const KvCache& cache, bool exact_tables) {
  const KvUsage usage = cache.usage();
  EXPECT_EQ(plan.used_bytes, usage.used_bytes);
  if (exact_tables) {
    EXPECT_EQ(plan.table_bytes, usage.table_bytes);
  } else {
    EXPECT_GE(plan.table_bytes, usage.table_bytes);
  }
  EXPECT_EQ(plan.peak_bytes, usage.capacity_bytes);
  EXPECT_EQ(plan.bytes_per_token, cache.bytes_per_token());
  for (std::size_t l = 0; l < plan.heads.size(); ++l)
    for (std::size_t h = 0; h < plan.heads[l].size(); ++h) {
      const KvHeadBytes& head = plan.heads[l][h];
      EXPECT_EQ(head.page_bytes, usage.head_bytes[l][h]) << "layer " << l << " head " << h;
      EXPECT_EQ(head.bytes_per_token,
                cache.bytes_per_token(static_cast<std::int64_t>(l), static_cast<std::int64_t>(h)));
      EXPECT_EQ(head.head.params, cache.params().heads[l][h]);
    }
}

// NVIDIA/Model-Optimizer#2482: from the declared head_dim and the KV heads, and as the pages are.
TEST(PlanKv, BytesPerTokenAreThoseOfTheDeclaredHeads) {
  const struct {
    std::int64_t layers, heads, head_dim;
    KvType type;
    std::int64_t bytes;
  } cases[] = {{40, 8, 128, KvType::kF16, 163840},
               {24, 8, 64, KvType::kF16, 49152},
               // One f32 scale for each key and value of 128 numbers, where blocks of 32 with an
               // f16 scale would take 87040.
               {40, 8, 128, KvType::kInt8, 84480}};
  for (const auto& c : cases) {
    KvCacheParams params;
    params.layers.assign(static_cast<std::size_t>(c.layers), {c.heads, c.head_dim, 0});
    params.k_type = params.v_type = c.type;
    params.max_tokens = 1000;
    const Result<KvPlan> plan = PlanKv(params, 1, 512);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->bytes_per_token, c.bytes);
    EXPECT_EQ(plan->used_bytes, 1024 * c.bytes) << "16 pages of 64 tokens";
    ExpectSame(*plan, Grow(params, 1, 512), true);
  }
}

class RandomShapes {
 public:
  explicit RandomShapes(unsigned seed) : bits_(seed) {}
  std::int64_t Upto(std::int64_t most) {
    return 1 + static_cast<std::int64_t>(bits_() % static_cast<unsigned>(most));
  }
  KvType Type() { return static_cast<KvType>(Upto(5) - 1); }
  KvPolicy Policy(bool budgets) {
    switch (Upto(budgets ? 6 : 5)) {
      case 1:
        return KvPolicy::Off();
      case 2:
        return KvPolicy::Window(Upto(300), Upto(40) - 1);
      case 3:
        return KvPolicy::SinkRecent(Upto(100), Upto(200), Upto(200) - 1);
      case 6: {
        const std::int64_t recent = Upto(40), sink = Upto(40);
        return KvPolicy::Budget(recent + sink + 31 + Upto(100), recent, sink);
      }
      default:
        return KvPolicy::Full();
    }
  }
  KvCacheParams Params(bool ragged, bool budgets) {
    KvCacheParams params;
    const std::int64_t layers = Upto(4);
    for (std::int64_t l = 0; l < layers; ++l)
      params.layers.push_back({Upto(5), Upto(140), Upto(90)});
    params.k_type = Type();
    params.v_type = Type();
    params.page_size = 16 * Upto(5);
    params.max_tokens = Upto(700);
    for (std::int64_t l = 0; ragged && l < layers; ++l) {
      params.heads.emplace_back();
      for (std::int64_t h = 0; h < params.layers[static_cast<std::size_t>(l)].num_kv_heads; ++h)
        params.heads.back().push_back({Type(), Type(), Policy(budgets)});
    }
    return params;
  }

 private:
  std::mt19937 bits_;
};

TEST(PlanKv, EqualsWhatCachesOfRandomShapesHold) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomShapes random(seed);
    const bool budgets = seed % 3 == 0;
    const KvCacheParams params = random.Params(seed % 8 != 0, budgets);
    const std::int64_t sequences = random.Upto(3), step = random.Upto(200);
    const Result<KvPlan> plan = PlanKv(params, sequences, step);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ExpectSame(*plan, Grow(params, sequences, step), !budgets);
    if (HasFailure()) return;
  }
}

// Long enough for several sizes of the tables and lists.
TEST(PlanKv, EqualsALongCache) {
  KvCacheParams params;
  params.layers = {{2, 16, 0}, {1, 16, 0}};
  params.max_tokens = 40000;
  params.heads = {{{KvType::kF16, KvType::kF16, KvPolicy::Full()},
                   {KvType::kF16, KvType::kF16, KvPolicy::SinkRecent(4, 5000)}},
                  {{KvType::kInt8, KvType::kInt4, KvPolicy::Window(20000)}}};
  for (const std::int64_t step : {1, 500, 512, 40000}) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    ExpectSame(*PlanKv(params, 1, step), Grow(params, 1, step), true);
  }
}

TEST(PlanKv, RefusesMoreThanBytesCanCount) {
  KvCacheParams params;
  params.layers.assign(64, {8, 1024, 1024});
  params.max_tokens = INT64_MAX / 2;
  EXPECT_FALSE(PlanKv(params, 1, 512).ok());
  params.max_tokens = 0;
  EXPECT_FALSE(PlanKv(params, 1, 512).ok());
  params.max_tokens = 10;
  EXPECT_FALSE(PlanKv(params, 0, 512).ok());
}

}  // namespace
}  // namespace manyhead
