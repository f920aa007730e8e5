#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/load_tiny.h"

/// Sessions whose heads have policies, and sessions under a cap.

namespace manyhead {
namespace {

using testing::SomeIds;

using ::testing::HasSubstr;

Model TinyLlama() {
  testing::TinyModel tiny;
  tiny.MakeWeights(3);
  return testing::LoadTiny(tiny);
}

SessionOptions WithPolicy(const char* policy) {
  SessionOptions options;
  options.kv_policy = policy;
  options.context = 400;
  options.math = MathMode::kExact;
  options.chunk = 40;
  options.threads = 2;
  return options;
}

std::vector<float> LogitsAfter(Session& session, std::span<const TokenId> ids) {
  const Result<std::span<const float>> logits = session.Append(ids);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return {logits->begin(), logits->end()};
}

TEST(SessionPolicy, FullOnAllHeadsIsThePlainCache) {
  const Model model = TinyLlama();
  Session plain = *Session::Create(model, WithPolicy(""));
  Session full = *Session::Create(model, WithPolicy("full"));
  EXPECT_EQ(LogitsAfter(full, SomeIds(130)), LogitsAfter(plain, SomeIds(130)));
  EXPECT_EQ(LogitsAfter(full, SomeIds(1)), LogitsAfter(plain, SomeIds(1)));
  EXPECT_EQ(full.cache().usage().used_bytes, plain.cache().usage().used_bytes);
}

// The same for heads that JSON names one by one, in every type.
TEST(SessionPolicy, FullForEachHeadByNameIsThePlainCache) {
  const Model model = TinyLlama();
  for (const KvType type :
       {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    SessionOptions options = WithPolicy("");
    options.k_type = options.v_type = type;
    Session plain = *Session::Create(model, options);
    SessionOptions named = WithPolicy("");
    const std::string json = FormatKvHeads(plain.cache().params().heads);
    named.kv_policy = json;
    Session full = *Session::Create(model, named);
    EXPECT_EQ(full.cache().params().heads, plain.cache().params().heads);
    EXPECT_EQ(LogitsAfter(full, SomeIds(130)), LogitsAfter(plain, SomeIds(130)))
        << KvTypeName(type);
    for (int step = 0; step < 20; ++step)
      ASSERT_EQ(LogitsAfter(full, SomeIds(1)), LogitsAfter(plain, SomeIds(1))) << KvTypeName(type);
    EXPECT_EQ(full.cache().usage().head_bytes, plain.cache().usage().head_bytes);
    EXPECT_EQ(full.cache().usage().table_bytes, plain.cache().usage().table_bytes);
    EXPECT_EQ(full.cache().params().capacity_bytes, plain.cache().params().capacity_bytes);
  }
}

// Rotary positions and what is seen do not depend on how a text is cut, nor on what was evicted.
TEST(SessionPolicy, StepsOfAnySizeGiveTheSameLogits) {
  const Model model = TinyLlama();
  SessionOptions options = WithPolicy(
      R"js({"heads": [{"kv_heads": [0], "policy": "sink(4)+recent(60)"},
                      {"layers": [1], "kv_heads": [1], "policy": "window(33)", "k_type": "int8"}]})js");
  std::vector<std::vector<float>> results;
  for (const std::int64_t chunk : {50, 100, 300}) {  // one product kernel serves them all
    options.chunk = chunk;
    Session session = *Session::Create(model, options);
    results.push_back(LogitsAfter(session, SomeIds(300)));
    EXPECT_EQ(results.back(), results.front()) << chunk;
  }
  Session plain = *Session::Create(model, WithPolicy(""));
  EXPECT_NE(LogitsAfter(plain, SomeIds(300)), results.front());
}

// Evicted tokens are evaluated again where a shorter sequence needs them.
TEST(SessionPolicy, TruncationIsExact) {
  const Model model = TinyLlama();
  for (const char* policy :
       {"window(20)", "window(20)+margin(5)", "sink(4)+recent(70)", "budget(64)", "off"}) {
    Session session = *Session::Create(model, WithPolicy(policy));
    LogitsAfter(session, SomeIds(300));
    for (const int length : {299, 170, 64, 3}) {
      ASSERT_TRUE(session.Truncate(length).ok());
      ASSERT_EQ(session.length(), length);
      Session fresh = *Session::Create(model, WithPolicy(policy));
      LogitsAfter(fresh, SomeIds(length));
      EXPECT_EQ(LogitsAfter(session, SomeIds(5)), LogitsAfter(fresh, SomeIds(5)))
          << policy << length;
      ASSERT_TRUE(session.Truncate(length).ok());
    }
  }
}

TEST(SessionPolicy, WrongPoliciesAreRefused) {
  const Model model = TinyLlama();
  const Result<Session> session =
      Session::Create(model, WithPolicy(R"({"heads": [{"layers": [2]}]})"));
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(session.status().message(),
              HasSubstr("heads[0].layers has 2; expected numbers or \"first-last\" in 0..1"));
}

TEST(SessionPolicy, TheCapCountsPagesTablesAndScratch) {
  const Model model = TinyLlama();
  SessionOptions options = WithPolicy("");
  options.kv_budget_bytes = 1;
  Result<Session> refused = Session::Create(model, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("kv_budget_bytes = 1; expected "));
  options.kv_budget_bytes = -1;
  EXPECT_THAT(Session::Create(model, options).status().message(),
              HasSubstr("kv_budget_bytes = -1; expected 0 to"));

  // Room for the first 128 tokens.
  Session whole = *Session::Create(model, WithPolicy(""));
  LogitsAfter(whole, SomeIds(128));
  const KvUsage usage = whole.cache().usage();
  options.kv_budget_bytes = INT64_MAX;
  Session roomy = *Session::Create(model, options);
  EXPECT_EQ(roomy.cache().params().capacity_bytes, whole.cache().params().capacity_bytes);
  // An error names the least cap: scratch and a sequence of one token.
  const std::string& message = refused.status().message();
  const std::int64_t least = std::stoll(message.substr(message.find("expected ") + 9));
  options.kv_budget_bytes = least - 1;
  EXPECT_FALSE(Session::Create(model, options).ok());
  options.kv_budget_bytes = least;
  EXPECT_TRUE(Session::Create(model, options).ok());
  const std::int64_t scratch = least - *KvCapacityBytes(whole.cache().params(), 1, 1);
  options.kv_budget_bytes = scratch + usage.used_bytes + usage.table_bytes;
  Session session = *Session::Create(model, options);
  EXPECT_EQ(session.cache().params().capacity_bytes, usage.used_bytes + usage.table_bytes);
  LogitsAfter(session, SomeIds(128));
  const std::vector<float> expected = LogitsAfter(whole, SomeIds(1));
  EXPECT_EQ(session.Append(SomeIds(1)).status().code(), StatusCode::kOutOfPages);
  EXPECT_EQ(session.length(), 128);
  ASSERT_TRUE(session.Truncate(127).ok());
  const std::vector<TokenId> last = {SomeIds(128).back()};
  ASSERT_TRUE(whole.Truncate(127).ok());
  EXPECT_EQ(LogitsAfter(session, last), LogitsAfter(whole, last)) << "smaller requests still work";
}

}  // namespace
}  // namespace manyhead
