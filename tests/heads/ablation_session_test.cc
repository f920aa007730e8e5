#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/session.h"
#include "tests/heads/ablation_testing.h"

/// Ablations that come, change and go while a session holds tokens.

namespace manyhead {
namespace {

using testing::Ablated;
using testing::Exact;
using ::testing::HasSubstr;
using testing::LogitsAfter;
using testing::Parse;
using testing::SomeIds;

class AblatedSession : public ::testing::Test {
 protected:
  static Model Load() {
    testing::TinyModel tiny;
    tiny.layers = 3;
    tiny.MakeWeights(9);
    return testing::LoadTiny(tiny);
  }

  /// Returns the logits of a session that has had `ablation` from the start after `tokens` tokens
  /// and 1 more.
  std::vector<float> Fresh(const Ablation& ablation, int tokens) {
    Session session = Ablated(model_, Exact(), ablation);
    LogitsAfter(session, SomeIds(tokens));
    return LogitsAfter(session, SomeIds(1));
  }

  Model model_ = Load();
};

TEST_F(AblatedSession, HeldTokensAreEvaluatedAnew) {
  Session session = *Session::Create(model_, Exact());
  LogitsAfter(session, SomeIds(100));
  for (const char* edits : {"0.1", "0.k0,1.k1", "1.3=0.5", "0.1", "2.k0"}) {
    const Ablation ablation = Parse(model_, edits);
    ASSERT_TRUE(session.SetAblation(ablation).ok()) << edits;
    EXPECT_EQ(session.ablation(), ablation);
    EXPECT_EQ(session.length(), 100);
    Session other = Ablated(model_, Exact(), ablation);
    const std::vector<float> logits = LogitsAfter(other, SomeIds(100));
    ASSERT_FALSE(session.logits().empty());
    EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), logits);
    EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh(ablation, 100)) << edits;
    EXPECT_EQ(session.cache().usage().head_bytes, [&] {
      LogitsAfter(other, SomeIds(1));
      return other.cache().usage().head_bytes;
    }());
    ASSERT_TRUE(session.Truncate(100).ok());
  }
  ASSERT_TRUE(session.SetAblation({}).ok());
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh({}, 100));
}

// The last layer's keys and values do not depend on its heads: kept tokens are the same then.
TEST_F(AblatedSession, KeptTokensLoseWhatNobodyReads) {
  Session session = *Session::Create(model_, Exact());
  LogitsAfter(session, SomeIds(100));
  const KvUsage before = session.cache().usage();
  const Ablation last = Parse(model_, "2.k1");
  ASSERT_TRUE(session.SetAblation(last, HeldTokens::kKeep).ok());
  const KvUsage after = session.cache().usage();
  EXPECT_EQ(after.head_bytes[2][1], 0);
  EXPECT_EQ(before.used_bytes - after.used_bytes, before.head_bytes[2][1]);
  EXPECT_LT(after.table_bytes, before.table_bytes);
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh(last, 100));
  // In an earlier layer they are not.
  ASSERT_TRUE(session.Truncate(100).ok());
  const Ablation first = Parse(model_, "0.k1,2.k1");
  ASSERT_TRUE(session.SetAblation(first, HeldTokens::kKeep).ok());
  EXPECT_NE(LogitsAfter(session, SomeIds(1)), Fresh(first, 100));
  ASSERT_TRUE(session.Truncate(100).ok());
  ASSERT_TRUE(session.SetAblation(first).ok());
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh(first, 100));
}

TEST_F(AblatedSession, AHeadThatLacksTokensComesBackWithAllOrNoneOfThem) {
  Session session = Ablated(model_, Exact(), Parse(model_, "1.k0"));
  LogitsAfter(session, SomeIds(100));
  const Status status = session.SetAblation({}, HeldTokens::kKeep);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("KV head 0 of layer 1 lacks the 100 tokens held; expected "
                        "an empty session, or kReevaluate or kDrop"));
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh(Parse(model_, "1.k0"), 100));  // as it was
  // Heads that have their tokens may come and go.
  ASSERT_TRUE(session.SetAblation(Parse(model_, "1.k0,0.0"), HeldTokens::kKeep).ok());
  ASSERT_TRUE(session.SetAblation(Parse(model_, "1.k0"), HeldTokens::kKeep).ok());
  ASSERT_TRUE(session.SetAblation({}, HeldTokens::kDrop).ok());
  EXPECT_EQ(session.length(), 0);
  EXPECT_TRUE(session.logits().empty());
  LogitsAfter(session, SomeIds(100));
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh({}, 100));
  ASSERT_TRUE(session.Truncate(0).ok());
  ASSERT_TRUE(session.SetAblation(Parse(model_, "1.k0"), HeldTokens::kKeep).ok());
  ASSERT_TRUE(session.SetAblation({}, HeldTokens::kKeep).ok());
}

TEST_F(AblatedSession, ARefusedAblationChangesNothing) {
  Session session = Ablated(model_, Exact(), Parse(model_, "0.1"));
  LogitsAfter(session, SomeIds(50));
  const Status status = session.SetAblation({{HeadEdit{{3, 0}}}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("layer = 3; expected 0..2"));
  EXPECT_EQ(session.SetAblation({}, static_cast<HeldTokens>(3)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(session.ablation(), Parse(model_, "0.1"));
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), Fresh(Parse(model_, "0.1"), 50));
}

// The cap holds the text with half the heads, not with all of them.
TEST_F(AblatedSession, NoRoomForAHeadThatComesBack) {
  SessionOptions options = Exact();
  const Ablation half = Parse(model_, "0.k0,1.k0,2.k0");
  Session roomy = Ablated(model_, options, half);
  LogitsAfter(roomy, SomeIds(300));
  Session whole = *Session::Create(model_, options);
  LogitsAfter(whole, SomeIds(300));
  const KvUsage less = roomy.cache().usage(), all = whole.cache().usage();
  const std::int64_t cache =
      (less.used_bytes + less.table_bytes + all.used_bytes + all.table_bytes) / 2;
  options.kv_budget_bytes = 1;
  const std::string refusal = Session::Create(model_, options).status().message();
  const std::int64_t least = std::stoll(refusal.substr(refusal.find("expected ") + 9));
  options.kv_budget_bytes = least + cache;
  Session session = Ablated(model_, options, half);
  const std::vector<float> logits = LogitsAfter(session, SomeIds(300));
  EXPECT_EQ(session.SetAblation({}).code(), StatusCode::kOutOfPages);
  EXPECT_EQ(session.length(), 300);
  EXPECT_EQ(session.ablation(), half);
  EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), logits);
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), LogitsAfter(roomy, SomeIds(1)));
}

TEST_F(AblatedSession, GenerationsUseIt) {
  GenerateOptions generate;
  generate.max_tokens = 12;
  SessionOptions options = Exact();
  options.prefix_bytes = 1 << 20;
  Session session = *Session::Create(model_, options);
  const std::vector<TokenId> prompt = SomeIds(150);
  const auto ids = [&](Session& of) { return of.Generate(prompt, generate)->ids; };
  const std::vector<TokenId> plain = ids(session);
  for (const char* edits : {"1.k1,0.2=-1", "2.0=-3", "1.k1,0.2=-1"}) {
    Session fresh = Ablated(model_, Exact(), Parse(model_, edits));
    // The cached prefix was stored under another ablation.
    ASSERT_TRUE(session.SetAblation(Parse(model_, edits), HeldTokens::kDrop).ok());
    const std::vector<TokenId> ablated = ids(session);
    EXPECT_EQ(ablated, ids(fresh)) << edits;
    EXPECT_NE(ablated, plain) << edits;
  }
  ASSERT_TRUE(session.SetAblation({}, HeldTokens::kDrop).ok());
  EXPECT_EQ(ids(session), plain);
}

// Tokens that were kept through a change are no prefix of a prompt under the new ablation.
TEST_F(AblatedSession, KeptTokensAreNotReusedLater) {
  SessionOptions options = Exact();
  options.prefix_bytes = 1 << 20;
  Session session = *Session::Create(model_, options);
  GenerateOptions generate;
  generate.max_tokens = 1;
  ASSERT_TRUE(session.Generate(SomeIds(200), generate).ok());
  const Ablation ablation = Parse(model_, "0.0,0.1");
  ASSERT_TRUE(session.SetAblation(ablation, HeldTokens::kKeep).ok());
  ASSERT_TRUE(session.Generate(SomeIds(220), generate).ok());  // goes on from the tokens kept
  ASSERT_TRUE(session.Generate(SomeIds(150, 99), generate).ok());
  ASSERT_TRUE(session.Generate(SomeIds(220), generate).ok());
  Session fresh = Ablated(model_, Exact(), ablation);
  ASSERT_TRUE(fresh.Generate(SomeIds(220), generate).ok());
  EXPECT_EQ(LogitsAfter(session, SomeIds(1)), LogitsAfter(fresh, SomeIds(1)));
}

TEST_F(AblatedSession, AFileKnowsItsAblation) {
  const testing::TempDir folder;
  const Ablation ablation = Parse(model_, "1.k0,0.1=0.5");
  Session session = Ablated(model_, Exact(), ablation);
  LogitsAfter(session, SomeIds(70));
  ASSERT_TRUE(session.Save(folder.File("session")).ok());
  Session same = Ablated(model_, Exact(), ablation);
  ASSERT_TRUE(same.Restore(folder.File("session")).ok());
  EXPECT_EQ(LogitsAfter(same, SomeIds(1)), LogitsAfter(session, SomeIds(1)));
  for (const char* edits : {"1.k0,0.1=0.25", "1.k0", "0.1=0.5"}) {
    Session other = Ablated(model_, Exact(), Parse(model_, edits));
    const Status status = other.Restore(folder.File("session"));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << edits;
    EXPECT_THAT(status.message(), HasSubstr("ablation ")) << edits;
  }
  Session plain = *Session::Create(model_, Exact());
  EXPECT_EQ(plain.Restore(folder.File("session")).code(), StatusCode::kInvalidArgument);
}

// The bytes that products read and the policies of --kv-policy: `off` is the same either way.
TEST_F(AblatedSession, PoliciesAndAblationsAgree) {
  SessionOptions options = Exact();
  options.kv_policy = R"js({"heads": [{"layers": [1], "kv_heads": [0], "policy": "off"}]})js";
  Session policy = *Session::Create(model_, options);
  Session ablated = Ablated(model_, Exact(), Parse(model_, "1.k0"));
  Session whole = *Session::Create(model_, Exact());
  StepProfile by_policy, by_ablation, by_whole;
  policy.SetProfile(&by_policy);
  ablated.SetProfile(&by_ablation);
  whole.SetProfile(&by_whole);
  EXPECT_EQ(LogitsAfter(policy, SomeIds(90)), LogitsAfter(ablated, SomeIds(90)));
  LogitsAfter(whole, SomeIds(90));
  const auto bytes = [](const StepProfile& profile, StepPhase phase) {
    return profile[phase].bytes;
  };
  for (const StepPhase phase : {StepPhase::kQueryKeyValue, StepPhase::kAttention})
    EXPECT_EQ(bytes(by_policy, phase), bytes(by_ablation, phase));
  // One of 6 KV heads: a sixth of keys, values and queries is neither computed nor read.
  EXPECT_EQ(bytes(by_ablation, StepPhase::kQueryKeyValue) * 6,
            bytes(by_whole, StepPhase::kQueryKeyValue) * 5);
  EXPECT_EQ(bytes(by_ablation, StepPhase::kAttention) * 6,
            bytes(by_whole, StepPhase::kAttention) * 5);
  EXPECT_EQ(policy.cache().usage().head_bytes, ablated.cache().usage().head_bytes);
}

}  // namespace
}  // namespace manyhead
