#include "runtime/memory/keys_seen.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "manyhead/memory.h"
#include "runtime/cache/page_layout.h"

namespace manyhead {
namespace {

/// Pairs of a query and a key, counted one by one by what the policies are documented to let a
/// query see. What a budget holds before a step is asked of a real cache.
class Reference {
 public:
  Reference(const KvPolicy& policy, std::int64_t window, std::int64_t tokens, std::int64_t step)
      : policy_(policy), window_(window == 0 ? tokens : window) {
    KvCacheParams params;
    params.layers = {{1, 16, 16}};
    params.heads = {{{KvType::kF16, KvType::kF16, policy}}};
    params.max_tokens = tokens;
    params.capacity_bytes = *KvCapacityBytes(params, 1, tokens, step);
    KvCache cache = *KvCache::Create(params);
    const SequenceId id = *cache.CreateSequence();
    for (std::int64_t length = 0; length < tokens;) {
      const std::int64_t count = std::min(step, tokens - length);
      EXPECT_TRUE(cache.Reserve(id, count).ok());
      std::int64_t held = 0;
      for (std::int64_t j = 0; j < length; ++j) held += cache.Holds(id, 0, 0, j) ? 1 : 0;
      for (std::int64_t i = length; i < length + count; ++i) pairs_ += Seen(i, held + i - length);
      length += count;
    }
  }

  std::int64_t pairs() const { return pairs_; }

 private:
  /// Keys of the query at position i, before which `held` are stored.
  std::int64_t Seen(std::int64_t i, std::int64_t held) const {
    if (policy_.kind == KvPolicyKind::kOff) return 0;
    if (policy_.kind == KvPolicyKind::kBudget) return std::min(window_, held + 1);
    std::int64_t seen = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      const bool kept = policy_.kind == KvPolicyKind::kFull || j > i - policy_.recent ||
                        (policy_.kind == KvPolicyKind::kSinkRecent && j < policy_.sink);
      seen += kept && j > i - window_ ? 1 : 0;
    }
    return seen;
  }

  KvPolicy policy_;
  std::int64_t window_;
  std::int64_t pairs_ = 0;
};

const KvPolicy kPolicies[] = {KvPolicy::Full(),
                              KvPolicy::Window(1),
                              KvPolicy::Window(20),
                              KvPolicy::Window(500),
                              KvPolicy::SinkRecent(4, 20),
                              KvPolicy::SinkRecent(70, 3),
                              KvPolicy::Window(20, 30),
                              KvPolicy::SinkRecent(9, 9),
                              KvPolicy::Budget(40, 8),
                              KvPolicy::Budget(77, 20, 5),
                              KvPolicy::Off()};

TEST(KeysSeen, CountsWhatTheQueriesOfEveryPolicySee) {
  for (const KvPolicy& policy : kPolicies)
    for (const std::int64_t window : {0, 1, 7, 50, 400})
      for (const std::int64_t tokens : {1, 2, 19, 64, 65, 203})
        for (const std::int64_t step : {1, 7, 16, 48, 300}) {
          const KvHead head = MakeKvHead({1, 16, 16}, {KvType::kF16, KvType::kF16, policy}, 64);
          CheckedMath math;
          const std::int64_t most = std::min(step, tokens);
          EXPECT_EQ(KeysSeen(head, window, most).Pairs(tokens, math),
                    Reference(policy, window, tokens, most).pairs())
              << FormatKvPolicy(policy) << ", window " << window << ", " << tokens
              << " tokens in steps of " << step;
          EXPECT_FALSE(math.overflow());
        }
}

TEST(KeysSeen, LastTokenIsAStepOfItsOwn) {
  for (const KvPolicy& policy : kPolicies)
    for (const std::int64_t window : {0, 1, 7, 50, 400})
      for (const std::int64_t tokens : {1, 2, 19, 64, 65, 203}) {
        const KvHead head = MakeKvHead({1, 16, 16}, {KvType::kF16, KvType::kF16, policy}, 64);
        const std::int64_t before =
            tokens == 1 ? 0 : Reference(policy, window, tokens - 1, 1).pairs();
        EXPECT_EQ(KeysSeen(head, window, 1).OfLast(tokens),
                  Reference(policy, window, tokens, 1).pairs() - before)
            << FormatKvPolicy(policy) << ", window " << window << ", " << tokens << " tokens";
      }
}

TEST(KeysSeen, LongContextsAreCountedInClosedForm) {
  CheckedMath math;
  const std::int64_t tokens = std::int64_t{1} << 31;
  const auto pairs = [&](const KvPolicy& policy, std::int64_t step) {
    const KvHead head = MakeKvHead({1, 64, 64}, {KvType::kF16, KvType::kF16, policy}, 64);
    return KeysSeen(head, 0, step).Pairs(tokens, math);
  };
  EXPECT_EQ(pairs(KvPolicy::Full(), 512), (tokens / 2) * (tokens + 1));
  EXPECT_EQ(pairs(KvPolicy::Window(1024), 512), 1024 * tokens - 1024 * 1023 / 2);
  EXPECT_GT(pairs(KvPolicy::Budget(1024, 256), 1), 1000 * tokens);
  EXPECT_FALSE(math.overflow());
}

/// The plan's counts of one layer with four KV heads of two query heads each.
MemoryPlan Plan(const std::string& policy, std::int64_t window = 0) {
  ShapeParams params;
  params.d_model = 512;
  params.num_heads = 8;
  params.num_kv_heads = 4;
  params.window = window;
  MemoryOptions options;
  options.session.context = 8192;
  options.session.kv_policy = policy;
  const Result<MemoryPlan> plan = PlanMemory(*MakeModelShape(params), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(PlanMemory, APolicyCountsAsTheSameWindowOfTheModelDoes) {
  const MemoryPlan full = Plan(""), policy = Plan("window(1024)"), window = Plan("", 1024);
  EXPECT_LT(policy.flops.scores_seen, full.flops.scores_seen / 4);
  EXPECT_EQ(policy.flops.scores_seen, window.flops.scores_seen);
  EXPECT_EQ(policy.decode_flops.scores_seen, window.decode_flops.scores_seen);
  EXPECT_EQ(policy.flops.scores, full.flops.scores) << "every pair, seen or not";
  EXPECT_EQ(policy.decode_kv_bytes, 1024 * full.kv_bytes_per_token);
  EXPECT_EQ(full.decode_kv_bytes, 8192 * full.kv_bytes_per_token);
}

TEST(PlanMemory, HeadsThatAreOffAttendToNothing) {
  const MemoryPlan off = Plan("off"), full = Plan("");
  EXPECT_EQ(off.flops.scores, 0);
  EXPECT_EQ(off.flops.scores_seen, 0);
  EXPECT_EQ(off.decode_flops.scores_seen, 0);
  EXPECT_EQ(off.decode_kv_bytes, 0);
  EXPECT_EQ(off.flops.projections, full.flops.projections);
}

TEST(PlanMemory, EveryHeadHasItsOwnCount) {
  const MemoryPlan mixed = Plan(
      R"json({"heads": [{"kv_heads": [1], "policy": "window(256)"},
                        {"kv_heads": [2], "policy": "sink(4)+recent(256)"},
                        {"kv_heads": [3], "policy": "off"}]})json");
  const std::vector<HeadPlan>& heads = mixed.layers[0].heads;
  const std::int64_t window = 256 * 257 / 2 + (8192 - 256) * 256;
  const std::int64_t sinks = 1 + 2 + 3 + 4 * (8192 - 256 - 3);
  const std::int64_t pairs[] = {8192 * 8193 / 2, window, window + sinks, 0};
  std::int64_t all = 0;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    EXPECT_EQ(heads[h].flops.scores_seen, 2 * pairs[h] * 2 * (64 + 64)) << "head " << h;
    all += heads[h].flops.scores_seen;
  }
  EXPECT_EQ(mixed.flops.scores_seen, all);
  EXPECT_EQ(heads[1].decode_kv_tokens, 256);
  EXPECT_EQ(heads[2].decode_kv_tokens, 260);
}

}  // namespace
}  // namespace manyhead
