#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/memory.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;

/// A 70B model's layers, fewer and narrower.
ModelShape Small() {
  ShapeParams params;
  params.d_model = 512;
  params.num_heads = 16;
  params.num_kv_heads = 2;
  params.layers = 5;
  params.ffn_dim = 1024;
  params.vocab_size = 300;
  params.weight_type = WeightType::kQ8_0;
  return *MakeModelShape(params);
}

MemoryOptions Options(KvType type, const std::string& policy, std::int64_t chunk) {
  MemoryOptions options;
  options.session.context = 1;
  options.session.k_type = options.session.v_type = type;
  options.session.kv_policy = policy;
  options.session.chunk = chunk;
  options.session.threads = 2;
  return options;
}

MemoryPlan PlanAt(const ModelShape& shape, MemoryOptions options, std::int64_t context) {
  options.session.context = context;
  return *PlanMemory(shape, options);
}

/// Returns how many tokens of each of `batch` sequences fit into a cache with this cap, one step of
/// each in turn.
std::int64_t TokensThatFit(const ModelShape& shape, const MemoryOptions& options,
                           std::int64_t capacity, std::int64_t most) {
  KvCacheParams params;
  for (const LayerConfig& layer : shape.config.layers)
    params.layers.push_back({layer.num_kv_heads, layer.head_dim, layer.head_dim_v});
  params.k_type = params.v_type = options.session.k_type;
  if (!options.session.kv_policy.empty())
    params.heads = *ParseKvHeads(options.session.kv_policy, params);
  params.max_tokens = most;
  params.capacity_bytes = capacity;
  Result<KvCache> cache = KvCache::Create(params);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  std::vector<SequenceId> ids;
  for (std::int64_t b = 0; b < options.batch; ++b) ids.push_back(*cache->CreateSequence());
  std::int64_t step = options.session.chunk, length = 0;
  while (length < most) {
    bool room = true;
    for (const SequenceId id : ids)
      room = room && cache->Reserve(id, std::min(step, most - length)).ok();
    if (room) {
      length += std::min(step, most - length);
      continue;
    }
    for (const SequenceId id : ids) EXPECT_TRUE(cache->Truncate(id, length).ok());
    if (step == 1) return length;
    step = 1;
  }
  return length;
}

/// Returns the part of `bytes` that remains for the cache besides everything else that such a
/// context needs.
std::int64_t CapAt(const ModelShape& shape, const MemoryOptions& options, std::int64_t context,
                   std::int64_t bytes) {
  const MemoryPlan plan = PlanAt(shape, options, context);
  return bytes - (plan.total_bytes - plan.kv_peak_bytes);
}

/// Such a cache holds `fits` tokens, and no page more.
void ExpectExact(const ModelShape& shape, const MemoryOptions& options, std::int64_t fits,
                 std::int64_t bytes) {
  const std::int64_t more = fits + 64;
  EXPECT_EQ(TokensThatFit(shape, options, CapAt(shape, options, fits, bytes), fits), fits);
  EXPECT_LT(TokensThatFit(shape, options, CapAt(shape, options, more, bytes), more), more);
}

TEST(LargestContext, IsTheLastThatFits) {
  const ModelShape shape = Small();
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4})
    for (const char* policy : {"", "sink(4)+recent(700)"})
      for (const std::int64_t batch : {1, 3}) {
        MemoryOptions options = Options(type, policy, 64);
        options.batch = batch;
        const std::int64_t bytes = PlanAt(shape, options, 600).total_bytes + 100;
        const Result<std::int64_t> fits = LargestContext(shape, options, bytes);
        ASSERT_TRUE(fits.ok()) << fits.status().message();
        EXPECT_LE(PlanAt(shape, options, *fits).total_bytes, bytes);
        EXPECT_GT(PlanAt(shape, options, *fits + 1).total_bytes, bytes);
        EXPECT_GE(*fits, 600);
      }
}

// The answer is what a cache under a cap takes, not only what the plan says of itself.
TEST(LargestContext, EqualsWhatACappedCacheHolds) {
  const ModelShape shape = Small();
  for (const KvType type : {KvType::kF16, KvType::kInt8})
    for (const std::int64_t batch : {1, 4})
      for (const std::int64_t chunk : {1, 16, 64}) {
        MemoryOptions options = Options(type, "", chunk);
        options.batch = batch;
        for (const std::int64_t extra : {0, 100'000, 777'777}) {
          const std::int64_t bytes = PlanAt(shape, options, 900).total_bytes + extra;
          const std::int64_t fits = *LargestContext(shape, options, bytes);
          SCOPED_TRACE(::testing::Message() << "steps of " << chunk << ", batch " << batch);
          ExpectExact(shape, options, fits, bytes);
        }
      }
}

TEST(LargestContext, HeadsWithAPolicyHoldWhatACappedCacheDoes) {
  const ModelShape shape = Small();
  const std::string mixed =
      R"json({"heads": [{"layers": ["1-4"], "policy": "sink(4)+recent(200)"},
                        {"layers": [3], "kv_heads": [1], "policy": "off"}]})json";
  MemoryOptions options = Options(KvType::kF16, mixed, 32);
  const std::int64_t bytes = PlanAt(shape, options, 2000).total_bytes + 5000;
  ExpectExact(shape, options, *LargestContext(shape, options, bytes), bytes);
}

TEST(LargestBatch, IsTheLastThatFits) {
  const ModelShape shape = Small();
  MemoryOptions options = Options(KvType::kF16, "", 64);
  options.session.context = 333;
  options.batch = 7;
  const std::int64_t bytes = PlanMemory(shape, options)->total_bytes;
  EXPECT_EQ(*LargestBatch(shape, options, bytes), 7);
  EXPECT_EQ(*LargestBatch(shape, options, bytes - 1), 6);
}

TEST(LargestContext, SaysWhatFitsNowhereAndWhatIsWrong) {
  const ModelShape shape = Small();
  const MemoryOptions options = Options(KvType::kF16, "", 64);
  EXPECT_EQ(*LargestContext(shape, options, 1000), 0);
  EXPECT_EQ(*LargestBatch(shape, options, 1000), 0);
  EXPECT_THAT(LargestContext(shape, options, 0).status().message(), HasSubstr("bytes = 0"));
  EXPECT_THAT(
      LargestContext(shape, Options(KvType::kF16, "window(0)", 64), 1 << 30).status().message(),
      HasSubstr("window"));
}

TEST(LargestContext, StopsAtLearnedPositions) {
  const Result<ModelShape> shape = ParseModelShape(
      R"({"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 4, "n_positions": 40,
          "vocab_size": 100})");
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(*LargestContext(*shape, Options(KvType::kF16, "", 64), std::int64_t{1} << 40), 40);
}

}  // namespace
}  // namespace manyhead
