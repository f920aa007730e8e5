#include "manyhead/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/platform/memory.h"
#include "tests/session/session_testing.h"
#include "tests/support/allocation_meter.h"

namespace manyhead {
namespace {

using testing::Exact;
using ::testing::HasSubstr;
using testing::Ids;
using testing::Load;
using testing::TinyModel;

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tiny_.MakeWeights(42);
    Result<Model> model = Load(tiny_.ToGguf());
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_.emplace(*std::move(model));
  }
  Session Make(SessionOptions options = {}) {
    Result<Session> session = Session::Create(*model_, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return *std::move(session);
  }
  std::vector<float> Append(Session& session, std::span<const TokenId> ids) {
    const auto logits = session.Append(ids);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    return {logits->begin(), logits->end()};
  }

  TinyModel tiny_;
  std::optional<Model> model_;
};

TEST_F(SessionTest, BitsAreEqualForEveryThreadCount) {
  const std::vector<TokenId> ids = Ids(40);
  std::vector<std::vector<float>> prefills, decodes;
  for (int threads : {1, 2, 3, 5, 8}) {
    SessionOptions options;
    options.threads = threads;
    Session session = Make(options);
    prefills.push_back(Append(session, std::span(ids).first(39)));
    decodes.push_back(Append(session, std::span(ids).last(1)));
    EXPECT_EQ(prefills.back(), prefills.front()) << threads;
    EXPECT_EQ(decodes.back(), decodes.front()) << threads;
  }
}

// Inputs of a public report (ggml-org/llama.cpp#3817): a full context is an error that changes
// nothing.
TEST_F(SessionTest, AFullContextIsAnErrorThatChangesNothing) {
  SessionOptions options;
  options.context = 64;
  Session session = Make(options);
  EXPECT_EQ(session.Append(Ids(65)).status().code(), StatusCode::kOutOfPages);
  EXPECT_THAT(session.Append(Ids(65)).status().message(),
              HasSubstr("0 tokens + 65 exceed context = 64"));
  EXPECT_EQ(session.length(), 0);
  Append(session, Ids(60));
  EXPECT_EQ(session.Append(Ids(8)).status().code(), StatusCode::kOutOfPages);
  EXPECT_EQ(session.length(), 60);
  const std::vector<float> next = Append(session, Ids(4, 9));
  EXPECT_EQ(session.Append(Ids(1)).status().code(), StatusCode::kOutOfPages);
  EXPECT_EQ(session.length(), 64);
  Session fresh = Make(options);
  Append(fresh, Ids(60));
  EXPECT_EQ(Append(fresh, Ids(4, 9)), next);
}

TEST_F(SessionTest, TruncateThenAppendEqualsAColdRun) {
  Session session = Make();
  Append(session, Ids(40));
  ASSERT_TRUE(session.Truncate(20).ok());
  Session cold = Make();
  Append(cold, std::span<const TokenId>(Ids(40)).first(20));
  EXPECT_EQ(Append(session, Ids(5, 3)), Append(cold, Ids(5, 3)));
  EXPECT_THAT(session.Truncate(26).message(), HasSubstr("length = 26; expected 0 to 25"));
}

// Input of a public report (ggml-org/llama.cpp#1585): a shorter prompt must not reuse old logits.
TEST_F(SessionTest, AShorterPromptEndsWithItsOwnLogits) {
  Session session = Make(Exact(Isa::kScalar));
  GenerateOptions options;
  options.max_tokens = 0;
  options.top_logits = 5;
  ASSERT_TRUE(session.Generate(std::vector<TokenId>{1, 2, 3, 4, 5, 6}, options).ok());
  const auto reused = session.Generate(std::vector<TokenId>{1, 2, 3}, options);
  ASSERT_TRUE(reused.ok());
  EXPECT_EQ(session.length(), 3);
  EXPECT_EQ(reused->timings.prefill_tokens, 1);
  Session cold = Make(Exact(Isa::kScalar));
  const auto expected = cold.Generate(std::vector<TokenId>{1, 2, 3}, options);
  ASSERT_EQ(reused->top_logits.size(), 5U);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(reused->top_logits[i].first, expected->top_logits[i].first);
    EXPECT_NEAR(reused->top_logits[i].second, expected->top_logits[i].second, 1e-4);
  }
}

TEST_F(SessionTest, GenerateIsAppendAndArgmax) {
  Session session = Make();
  GenerateOptions options;
  options.max_tokens = 12;
  std::string streamed;
  options.on_text = [&](std::string_view piece) { streamed += piece; };
  const std::vector<TokenId> prompt = Ids(10);
  const auto result = session.Generate(prompt, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  Session other = Make();
  std::vector<float> logits = Append(other, prompt);
  std::vector<TokenId> expected;
  for (int i = 0; i < 12; ++i) {
    const TokenId best = static_cast<TokenId>(
        std::max_element(logits.begin(), logits.begin() + 259) - logits.begin());
    if (best == 2) break;
    expected.push_back(best);
    logits = Append(other, {&best, 1});
  }
  EXPECT_EQ(result->ids, expected);
  EXPECT_EQ(streamed, result->text);
  EXPECT_EQ(result->text, model_->tokenizer().Decode(result->ids));
  EXPECT_EQ(result->timings.prefill_tokens, 10);
}

TEST_F(SessionTest, StepsMakeTheTextOfGenerateOneTokenAtATime) {
  GenerateOptions options;
  options.max_tokens = 12;
  options.sampling.temperature = 1;
  options.sampling.seed = 3;
  Session whole = Make();
  const auto expected = whole.Generate(Ids(10), options);
  ASSERT_TRUE(expected.ok());

  Session session = Make();
  std::string streamed;
  options.on_text = [&](std::string_view piece) { streamed += piece; };
  auto generation = session.Begin(Ids(10), options);
  ASSERT_TRUE(generation.ok()) << generation.status().message();
  EXPECT_EQ(session.length(), 0) << "nothing is evaluated before the first step";
  std::size_t steps = 0;
  for (bool more = true; more;) {
    const auto step = generation->Step();
    ASSERT_TRUE(step.ok()) << step.status().message();
    more = *step;
    ++steps;
    EXPECT_EQ(generation->result().ids.size(), steps);
    EXPECT_EQ(generation->result().text, streamed);
  }
  EXPECT_EQ(generation->result().ids, expected->ids);
  EXPECT_EQ(streamed, expected->text);
  EXPECT_EQ(generation->result().stop_reason, StopReason::kMaxTokens);
  EXPECT_EQ(session.length(), whole.length());
  const auto after = generation->Step();
  ASSERT_TRUE(after.ok());
  EXPECT_FALSE(*after);
  EXPECT_EQ(generation->result().ids.size(), 12U);
}

TEST_F(SessionTest, AGenerationThatIsDroppedLeavesAUsableSession) {
  GenerateOptions options;
  options.max_tokens = 12;
  Session session = Make();
  {
    auto generation = session.Begin(Ids(10), options);
    ASSERT_TRUE(generation->Step().ok());
    ASSERT_TRUE(generation->Step().ok());
  }
  const auto result = session.Generate(Ids(10), options);
  Session cold = Make();
  EXPECT_EQ(result->ids, cold.Generate(Ids(10), options)->ids);
}

TEST_F(SessionTest, GenerationStopsForEachReason) {
  Session session = Make();
  GenerateOptions options;
  options.max_tokens = 3;
  options.sampling.temperature = 2;
  options.sampling.seed = 11;
  auto result = session.Generate(Ids(5), options);
  EXPECT_EQ(result->stop_reason, StopReason::kMaxTokens);
  EXPECT_EQ(result->ids.size(), 3U);

  options.max_tokens = 100000;
  SessionOptions small;
  small.context = 16;
  Session tight = Make(small);
  std::size_t most = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    options.sampling.seed = seed;
    result = tight.Generate(Ids(5), options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    most = std::max(most, result->ids.size());
    if (result->stop_reason == StopReason::kEndToken) continue;
    EXPECT_EQ(result->stop_reason, StopReason::kContext);
    EXPECT_EQ(result->ids.size(), 12U);  // 16 held, and one more drawn
  }
  EXPECT_EQ(most, 12U);

  std::atomic<bool> cancel = false;
  options.cancel = &cancel;
  options.on_text = [&](std::string_view) { cancel = true; };
  result = session.Generate(Ids(5), options);
  EXPECT_EQ(result->stop_reason, StopReason::kCancelled);
}

// Input of a public report (Blaizzy/mlx-vlm PR#2112): the end token ends the text and is not part
// of it.
TEST_F(SessionTest, TheEndTokenEndsTheTextAndIsNotPartOfIt) {
  TinyModel always_ends = tiny_;
  // A final norm of zero makes all logits equal 0; a row of the end token alone cannot win then, so
  // its logit is raised by making every other embedding row its negative.
  auto& embedding = always_ends.tensors["token_embd.weight"];
  const std::vector<float> end(embedding.begin() + 2 * 24, embedding.begin() + 3 * 24);
  for (std::size_t i = 0; i < embedding.size(); ++i) embedding[i] = -end[i % 24];
  std::copy(end.begin(), end.end(), embedding.begin() + 2 * 24);
  for (auto& [name, values] : always_ends.tensors)
    if (name.find("attn_output") != std::string::npos || name.find("ffn_down") != std::string::npos)
      std::fill(values.begin(), values.end(), 0.0F);
  const Result<Model> model = Load(always_ends.ToGguf());
  Result<Session> session = Session::Create(*model, {});
  // After the end token itself the hidden state is its embedding: it predicts itself.
  const auto result = session->Generate(std::vector<TokenId>{1, 2}, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stop_reason, StopReason::kEndToken);
  EXPECT_TRUE(result->ids.empty());
  EXPECT_EQ(result->text, "");
}

TEST_F(SessionTest, BadArgumentsAreNamedAndChangeNothing) {
  Session session = Make();
  Append(session, Ids(4));
  const TokenId outside[] = {1, 259};
  EXPECT_THAT(session.Append(outside).status().message(),
              HasSubstr("ids[1] = 259; expected 0 to 258"));
  EXPECT_THAT(session.Append({}).status().message(), HasSubstr("0 tokens"));
  GenerateOptions options;
  options.sampling.temperature = -1;
  EXPECT_THAT(session.Generate(Ids(2), options).status().message(), HasSubstr("temperature"));
  options = {};
  options.stop = {""};
  EXPECT_THAT(session.Generate(Ids(2), options).status().message(), HasSubstr("stop"));
  options = {};
  options.max_tokens = -1;
  EXPECT_THAT(session.Generate(Ids(2), options).status().message(), HasSubstr("max_tokens = -1"));
  EXPECT_THAT(session.Generate(std::vector<TokenId>{-1}, {}).status().message(),
              HasSubstr("ids[0] = -1"));
  std::vector<double> nll(5);
  EXPECT_THAT(session.Score(Ids(3), nll).message(), HasSubstr("nll has 5"));
  EXPECT_EQ(session.length(), 4);

  const std::pair<SessionOptions, const char*> bad[] = {
      {{.context = -1}, "context = -1"},
      {{.threads = -2}, "threads = -2"},
      {{.threads = 5000}, "threads = 5000"},
      {{.chunk = -5}, "chunk = -5"},
  };
  for (const auto& [session_options, text] : bad)
    EXPECT_THAT(Session::Create(*model_, session_options).status().message(), HasSubstr(text));
}

TEST_F(SessionTest, NothingIsAllocatedForATokenWithinAPage) {
  SessionOptions options;
  options.threads = 2;
  Session session = Make(options);
  const std::vector<TokenId> ids = Ids(40);
  Append(session, std::span(ids).first(12));
  Append(session, std::span(ids).subspan(12, 1));  // the first token may
  testing::ResetAllocationMeter();
  bool ok = true;
  for (std::size_t i = 13; i < 40; ++i) ok &= session.Append({&ids[i], 1}).ok();
  EXPECT_EQ(testing::NumAllocations(), 0U);
  EXPECT_TRUE(ok);
}

TEST_F(SessionTest, RowsBeyondTheVocabularyAreNeverDrawn) {
  TinyModel padded;
  padded.extra_rows = 300;
  padded.MakeWeights(4);
  const Result<Model> model = Load(padded.ToGguf());
  Result<Session> session = Session::Create(*model, {});
  GenerateOptions options;
  options.sampling.temperature = 50;
  options.max_tokens = 40;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    options.sampling.seed = seed;
    const auto result = session->Generate(Ids(3), options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (TokenId id : result->ids) EXPECT_LT(id, 259);
  }
}

TEST_F(SessionTest, LogitsThatAreNoNumbersAreErrors) {
  TinyModel broken = tiny_;
  broken.tensors["output_norm.weight"][3] = NAN;
  const Result<Model> model = Load(broken.ToGguf());
  Result<Session> session = Session::Create(*model, {});
  std::vector<double> nll(4);
  const Status status = session->Score(Ids(5), nll);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("logits after ids[0] hold NaN"));
  EXPECT_EQ(session->length(), 0);
  EXPECT_THAT(session->Generate(Ids(5), {}).status().message(), HasSubstr("nan"));
}

// openvinotoolkit/openvino#20633: what is prepared for one prompt length must not stay for each.
// Its products run over each of them in gemm_test.
TEST_F(SessionTest, PromptsOfManyLengthsLeaveNothingBehind) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory";
#endif
  TinyModel tiny = tiny_;
  tiny.context = 2000;
  const Result<Model> model = Load(tiny.ToGguf());
  ASSERT_TRUE(model.ok()) << model.status().message();
  SessionOptions options;
  options.threads = 4;
  Result<Session> session = Session::Create(*model, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  const std::vector<TokenId> ids = Ids(2000);
  const auto round = [&] {
    for (std::size_t length = 1; length <= ids.size(); length += 13)
      EXPECT_TRUE(session->Truncate(0).ok() && session->Append(std::span(ids).first(length)).ok());
    return ResidentBytes();
  };
  const std::int64_t before = ResidentBytes(), first = round(), second = round();
  EXPECT_LE(first - before, std::int64_t{32} << 20);
  EXPECT_LE(second - first, std::int64_t{5} << 20);
}

TEST_F(SessionTest, CacheBytesEqualThePlan) {
  SessionOptions options;
  options.context = 64;
  Session session = Make(options);
  Append(session, Ids(1));
  std::int64_t by_head = 0;
  const KvUsage usage = session.cache().usage();
  ASSERT_EQ(usage.head_bytes.size(), 2U);
  for (const auto& layer : usage.head_bytes)
    for (std::int64_t bytes : layer) by_head += bytes;
  EXPECT_EQ(by_head, usage.used_bytes);
  EXPECT_GT(usage.used_bytes, 0);
}

}  // namespace
}  // namespace manyhead
