#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/cache/cache_testing.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;

TEST(KvPolicy, TextsReadBackToTheSame) {
  const struct {
    const char* text;
    KvPolicy policy;
  } cases[] = {{"full", KvPolicy::Full()},
               {"off", KvPolicy::Off()},
               {"window(512)", KvPolicy::Window(512)},
               {"sink(4)+recent(256)", KvPolicy::SinkRecent(4, 256)},
               {"window(512)+margin(16)", KvPolicy::Window(512, 16)},
               {"sink(4)+recent(256)+margin(5)", KvPolicy::SinkRecent(4, 256, 5)},
               {"budget(512)+recent(128)", KvPolicy::Budget(512, 128)},
               {"budget(512)+sink(4)+recent(128)", KvPolicy::Budget(512, 128, 4)}};
  for (const auto& c : cases) {
    EXPECT_EQ(FormatKvPolicy(c.policy), c.text);
    const Result<KvPolicy> policy = ParseKvPolicy(c.text);
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    EXPECT_EQ(*policy, c.policy);
  }
  EXPECT_EQ(*ParseKvPolicy("recent(9)+sink(0)"), KvPolicy::SinkRecent(0, 9));
  EXPECT_EQ(*ParseKvPolicy("recent(9)"), KvPolicy::SinkRecent(0, 9));
  EXPECT_EQ(*ParseKvPolicy("margin(3)+recent(9)"), KvPolicy::SinkRecent(0, 9, 3));
  EXPECT_EQ(*ParseKvPolicy("margin(0)+window(9)"), KvPolicy::Window(9));
  EXPECT_EQ(*ParseKvPolicy("budget(100)"), KvPolicy::Budget(100, 50));
  EXPECT_EQ(*ParseKvPolicy("budget(40)+sink(4)"), KvPolicy::Budget(40, 4, 4));
}

TEST(KvPolicy, WrongTextsAreRefusedNamingThePart) {
  const struct {
    const char *text, *message;
  } cases[] = {{"", "part ''; expected full"},
               {"a\nb", "ParseKvPolicy: 'a\\x0ab': part 'a\\x0ab'; expected full"},
               {"all", "part 'all'; expected full, window(n)"},
               {"window", "part 'window'; expected a number in brackets"},
               {"window()", "part 'window()'; expected a name and a whole number"},
               {"window(0)", "window(0); expected at least 1"},
               {"window(-3)", "part 'window(-3)'; expected a name and a whole number"},
               {"window(9999999999999999999)", "expected a name and a whole number"},
               {"window(4", "part 'window(4'; expected a name and a whole number"},
               {"window(4)x", "expected a name and a whole number"},
               {"full(3)", "part 'full(3)'; expected no number"},
               {"full+off", "full, window(n) and off stand alone"},
               {"window(4)+sink(1)", "full, window(n) and off stand alone"},
               {"margin(4)", "sink(n) goes with recent(n)"},
               {"full+margin(4)", "full, window(n) and off stand alone"},
               {"window(4)+margin", "part 'margin'; expected a number in brackets"},
               {"window(4)+sink(1)+margin(4)", "full, window(n) and off stand alone"},
               {"budget(100)+margin(4)", "margin(n) goes with window(n) or recent(n)"},
               {"sink(4)", "sink(n) goes with recent(n)"},
               {"sink(4)+recent(0)", "sink(n) goes with recent(n)"},
               {"sink(4)+sink(5)", "part 'sink(5)'; expected each part once"},
               {"budget(31)", "a budget is at least sink + recent + 32"},
               {"budget(100)+recent(69)", "a budget is at least sink + recent + 32"},
               {"budget(100)+sink(4611686018427387904)", "a budget is at least"}};
  for (const auto& c : cases) {
    const Result<KvPolicy> policy = ParseKvPolicy(c.text);
    ASSERT_FALSE(policy.ok()) << c.text;
    EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(policy.status().message(), HasSubstr(c.message)) << c.text;
  }
}

KvCacheParams ThreeLayers() {
  KvCacheParams params;
  params.layers = {{2, 16, 0}, {1, 8, 24}, {4, 32, 0}};
  params.k_type = KvType::kBf16;
  params.page_size = 16;
  params.max_tokens = 1000;
  return params;
}

TEST(KvHeads, EntriesApplyInOrder) {
  const auto heads = ParseKvHeads(
      R"js( {"heads": [{"policy": "window(64)", "v_type": "int8"},
                       {"layers": [0, "1-2"], "kv_heads": [0], "k_type": "f32"},
                       {"layers": ["2-2"], "kv_heads": ["1-3"], "policy": "off"}]} )js",
      ThreeLayers());
  ASSERT_TRUE(heads.ok()) << heads.status().message();
  const KvHeadParams window{KvType::kBf16, KvType::kInt8, KvPolicy::Window(64)};
  const KvHeadParams first{KvType::kF32, KvType::kInt8, KvPolicy::Window(64)};
  const KvHeadParams off{KvType::kBf16, KvType::kInt8, KvPolicy::Off()};
  EXPECT_EQ(*heads, (std::vector<std::vector<KvHeadParams>>{
                        {first, window}, {first}, {first, off, off, off}}));
  KvCacheParams other = ThreeLayers();
  other.k_type = KvType::kInt4;
  EXPECT_EQ(*ParseKvHeads(FormatKvHeads(*heads), other), *heads);
}

TEST(KvHeads, APolicyAloneIsForAllHeads) {
  const auto heads = ParseKvHeads(" sink(4)+recent(60)\n", ThreeLayers());
  ASSERT_TRUE(heads.ok());
  for (const auto& layer : *heads)
    for (const KvHeadParams& head : layer)
      EXPECT_EQ(head, (KvHeadParams{KvType::kBf16, KvType::kF16, KvPolicy::SinkRecent(4, 60)}));
}

TEST(KvHeads, WrongJsonIsRefusedNamingTheEntry) {
  constexpr std::size_t kDeep = 1 << 20;  // a recursive walk would run out of stack
  const std::string deep =
      R"({"heads": [)" + std::string(kDeep, '[') + std::string(kDeep, ']') + "]}";
  const struct {
    const char *text, *message;
  } cases[] = {
      {R"js({)js", "the text is no valid JSON"},
      {R"js({"heads": [{"policy": "full", "policy": "off"}]})js",
       "the text has the key \"policy\" twice"},
      {deep.c_str(), "the text is nested more than 64 deep"},
      {R"js([])js", "expected an object with a list \"heads\""},
      {R"js({"heads": 3})js", "expected an object with a list \"heads\""},
      {R"js({"heads": [], "head": 1})js", "has the key \"head\"; expected heads"},
      {R"js({"heads": [7]})js", "heads[0] = 7; expected an object"},
      {R"js({"heads": [{}, {"polcy": "full"}]})js",
       "heads[1] has the key \"polcy\"; expected layers"},
      {R"js({"heads": [{"policy": 3}]})js", "heads[0].policy = 3; expected a text"},
      {R"js({"heads": [{"policy": "window(x)"}]})js",
       "heads[0].policy: ParseKvPolicy: 'window(x)'"},
      {R"js({"heads": [{"k_type": "q4"}]})js", "heads[0].k_type = \"q4\"; expected f32, f16"},
      {R"js({"heads": [{"v_type": 4}]})js", "heads[0].v_type = 4; expected f32, f16"},
      {R"js({"heads": [{"layers": 2}]})js", "heads[0].layers = 2; expected a list"},
      {R"js({"heads": [{"layers": [3]}]})js", "heads[0].layers has 3; expected numbers or"},
      {R"js({"heads": [{"layers": ["2-1"]}]})js", "heads[0].layers has \"2-1\"; expected"},
      {R"js({"heads": [{"layers": ["-1"]}]})js", "heads[0].layers has \"-1\"; expected"},
      {R"js({"heads": [{"layers": [1.5]}]})js", "heads[0].layers has 1.5; expected"},
      {R"js({"heads": [{"kv_heads": [1]}]})js",
       "heads[0].kv_heads has 1; expected numbers or \"first-last\" in 0..0"},
      {R"js({"heads": [{"layers": [1], "kv_heads": [1]}]})js",
       "heads[0].kv_heads has 1; expected numbers or \"first-last\" in 0..0"},
      {R"js({"heads": [{"kv_heads": ["0-99999999999999999999"]}]})js", "heads[0].kv_heads has"},
      {R"js({"heads": [{"policy": "window(9000000000000000000)"}]})js",
       "heads[0][0].policy.recent = 9000000000000000000; expected 1..1099511627776"}};
  for (const auto& c : cases) {
    const auto heads = ParseKvHeads(c.text, ThreeLayers());
    ASSERT_FALSE(heads.ok()) << c.text;
    EXPECT_EQ(heads.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(heads.status().message(), HasSubstr(c.message)) << c.text;
  }
}

TEST(KvHeads, CreateChecksThem) {
  KvCacheParams good = ThreeLayers();
  good.capacity_bytes = 1 << 20;
  good.heads = *ParseKvHeads("full", good);
  ASSERT_TRUE(KvCache::Create(good).ok());
  const auto expect_refused = [&](const KvCacheParams& params, const char* message) {
    const Result<KvCache> cache = KvCache::Create(params);
    ASSERT_FALSE(cache.ok()) << message;
    EXPECT_THAT(cache.status().message(), HasSubstr(message));
  };
  KvCacheParams params = good;
  params.heads.pop_back();
  expect_refused(params, "heads has 2 layers; layers has 3");
  params = good;
  params.heads[2].pop_back();
  expect_refused(params, "heads[2] has 3 entries; num_kv_heads = 4");
  params = good;
  params.heads[0][1].k_type = static_cast<KvType>(9);
  expect_refused(params, "heads[0][1] has types 9, 1; expected 0..4");
  params = good;
  params.heads[0][1].policy = KvPolicy::Budget(63, 20, 12);
  expect_refused(params, "heads[0][1].policy.budget = 63; expected 64..");
  params.heads[0][1].policy = KvPolicy::SinkRecent(-1, 20);
  expect_refused(params, "heads[0][1].policy.sink = -1; expected 0..");
  params.heads[0][1].policy = KvPolicy::Window(20, -1);
  expect_refused(params, "heads[0][1].policy.margin = -1; expected 0..1099511627776");
  params.heads[0][1].policy = KvPolicy::Budget(100, 20);
  params.heads[0][1].policy.margin = 4;
  expect_refused(params, "heads[0][1].policy.margin = 4; expected 0 where the policy is budget(");
  params.heads[0][1].policy.margin = 0;
  params.heads[0][1].policy.kind = static_cast<KvPolicyKind>(7);
  expect_refused(params, "heads[0][1].policy.kind = 7; expected 0..4");
}

/// Grows one sequence to `tokens` in steps of `step`; the most that pages took on the way.
std::int64_t PeakBytes(KvCache& cache, std::int64_t tokens, std::int64_t step) {
  const SequenceId id = *cache.CreateSequence();
  std::int64_t peak = 0;
  while (cache.length(id) < tokens) {
    const Status status = cache.Reserve(id, std::min(step, tokens - cache.length(id)));
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) break;
    peak = std::max(peak, cache.usage().used_bytes);
  }
  return peak;
}

// Planned is what is taken, to the byte, for heads that keep only a part too.
TEST(KvCapacityBytes, OfPoliciesIsWhatStepsTake) {
  for (const char* policy :
       {"full", "off", "window(1)", "window(100)", "sink(4)+recent(40)", "sink(70)+recent(33)",
        "window(10000)", "window(100)+margin(5)", "sink(4)+recent(40)+margin(30)"}) {
    for (const std::int64_t step : {1, 16, 50, 500}) {
      for (const std::int64_t tokens : {1, 60, 200, 500}) {
        SCOPED_TRACE(std::string(policy) + " " + std::to_string(step));
        KvCacheParams params = ThreeLayers();
        params.heads = *ParseKvHeads(policy, params);
        params.heads[1][0].policy = KvPolicy::Full();
        params.capacity_bytes = *KvCapacityBytes(params, 1, tokens, step);
        KvCache cache = *KvCache::Create(params);
        const std::int64_t peak = PeakBytes(cache, tokens, step);
        const std::int64_t planned = peak + cache.usage().table_bytes;
        EXPECT_LE(planned, params.capacity_bytes);
        // Steps that begin at other residues could take one page more of each head.
        const bool every_residue = step == 1 || policy[0] == 'f';
        if (every_residue) {
          EXPECT_EQ(planned, params.capacity_bytes) << tokens;
        }
      }
    }
  }
}

TEST(KvCapacityBytes, OfBudgetsSuffices) {
  for (const std::int64_t step : {1, 40, 500}) {
    KvCacheParams params = ThreeLayers();
    params.heads = *ParseKvHeads("budget(100)+recent(20)", params);
    params.capacity_bytes = *KvCapacityBytes(params, 1, 500, step);
    KvCache cache = *KvCache::Create(params);
    const std::int64_t peak = PeakBytes(cache, 500, step);
    EXPECT_LE(peak + cache.usage().table_bytes, params.capacity_bytes);
    const std::int64_t tokens = (*cache.head_usage(SequenceId{0}))[0][0].tokens;
    EXPECT_EQ(tokens, std::min<std::int64_t>(500, step == 1 ? 100 : step == 40 ? 116 : 500));
  }
}

// Evicted pages serve other sequences and heads at once.
TEST(KvPolicy, EvictedPagesReturnToThePool) {
  KvCacheParams params = ThreeLayers();
  params.heads = *ParseKvHeads("sink(4)+recent(40)", params);
  params.capacity_bytes = 1 << 20;
  KvCache cache = *KvCache::Create(params);
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 320)).ok());
  const std::int64_t full = cache.usage().used_bytes;
  ASSERT_TRUE(cache.Evict(id).ok());
  // Tokens from 281 on are seen, and the first four: pages 0 and 17 to 19.
  EXPECT_EQ(cache.usage().used_bytes, full / 20 * 4);
  EXPECT_EQ((*cache.head_usage(id))[2][3].tokens, 4 * 16);
  EXPECT_TRUE(cache.Holds(id, 0, 0, 15));
  EXPECT_FALSE(cache.Holds(id, 0, 0, 16));
  EXPECT_FALSE(cache.Holds(id, 0, 0, 271));
  EXPECT_TRUE(cache.Holds(id, 0, 0, 272));
  const Status read = cache.Read(id, 0, 1, 16, nullptr, nullptr);
  EXPECT_THAT(read.message(), HasSubstr("position = 16 is not held by head 1 of layer 0, whose "
                                        "policy is sink(4)+recent(40)"));
  EXPECT_EQ(*cache.ExactLength(id, 320), 320);
  EXPECT_EQ(*cache.ExactLength(id, 319), 319);
  EXPECT_EQ(*cache.ExactLength(id, 311), 311) << "sees 272 on";
  EXPECT_EQ(*cache.ExactLength(id, 310), 16);
  EXPECT_EQ(*cache.ExactLength(id, 7), 7);
  EXPECT_FALSE(*cache.Truncate(id, 310));
  EXPECT_TRUE(*cache.Truncate(id, 16));
  for (std::int64_t s = 0; s < 16; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
}

// A margin keeps pages that no query sees, so that the sequence can go back; beyond it Rollback
// refuses, and nothing has changed.
TEST(KvPolicy, AMarginBoundsHowFarRollbackGoes) {
  KvCacheParams params = ThreeLayers();
  params.heads = *ParseKvHeads("sink(4)+recent(40)+margin(10)", params);
  params.heads[2][1].policy = KvPolicy::SinkRecent(4, 40, 10000);
  params.capacity_bytes = 1 << 20;
  KvCache cache = *KvCache::Create(params);
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 320)).ok());
  ASSERT_TRUE(cache.Evict(id).ok());
  // Tokens from 271 on may still be seen, and the first four: pages 0 and 16 to 19.
  EXPECT_EQ((*cache.head_usage(id))[2][3].tokens, 5 * 16);
  EXPECT_EQ((*cache.head_usage(id))[2][1].tokens, 320);
  EXPECT_FALSE(cache.Holds(id, 0, 0, 255));
  EXPECT_TRUE(cache.Holds(id, 0, 0, 256));
  EXPECT_EQ(*cache.ExactLength(id, 295), 295) << "sees 256 on";
  EXPECT_EQ(*cache.ExactLength(id, 294), 16);
  const Status refused = cache.Rollback(id, 26);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("KvCache::Rollback: count = 26 leads back to length 294, where tokens that "
                        "policies would show were evicted; the largest exact length up to it is "
                        "16"));
  EXPECT_EQ(cache.length(id), 320);
  EXPECT_THAT(cache.Rollback(id, 321).message(), HasSubstr("count = 321; expected 0..320"));
  EXPECT_THAT(cache.Rollback(id, -1).message(), HasSubstr("count = -1; expected 0..320"));
  EXPECT_FALSE(cache.Rollback(static_cast<SequenceId>(77), 0).ok());
  ASSERT_TRUE(cache.Rollback(id, 0).ok());
  ASSERT_TRUE(cache.Rollback(id, 25).ok());
  EXPECT_EQ(cache.length(id), 295);
  ASSERT_TRUE(Append(cache, id, Serials(295, 5)).ok());
  for (std::int64_t s = 256; s < 300; ++s) EXPECT_TRUE(HoldsToken(cache, id, s, s));
}

}  // namespace
}  // namespace manyhead
