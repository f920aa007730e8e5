#include "manyhead/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/platform/memory.h"
#include "tests/model/tiny_model.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/isas.h"

namespace manyhead {
namespace {

using ::manyhead::testing::GgufWriter;
using ::manyhead::testing::TinyModel;
using ::testing::HasSubstr;

std::string TempPath(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("manyhead_" + std::to_string(getpid()) + "_" + name + ".gguf"))
      .string();
}

Result<Model> Load(const GgufWriter& file) {
  const std::string path = TempPath("model");
  file.Write(path);
  Result<Model> model = Model::Load(path);  // the mapping outlives the name
  std::filesystem::remove(path);
  return model;
}

SessionOptions Exact(Isa isa) {
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.math = MathMode::kExact;
  options.threads = 1;
  options.isa = isa;
  return options;
}

std::vector<TokenId> Ids(int count, unsigned seed = 5) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((seed * 7919U + static_cast<unsigned>(i) * 104729U) % 259U));
  return ids;
}

struct Case {
  const char* name;
  TinyModel model;
};

std::vector<Case> Families() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, auto change) {
    TinyModel model;
    change(model);
    model.MakeWeights(static_cast<unsigned>(cases.size()) + 1);
    cases.push_back({name, model});
  };
  add("Llama", [](TinyModel&) {});
  add("LlamaUntiedMultiHead", [](TinyModel& m) {
    m.tied = false;
    m.num_kv_heads = 4;
  });
  add("LlamaWindow", [](TinyModel& m) { m.window = 5; });
  add("LlamaLinearRope", [](TinyModel& m) {
    m.rope_scaling = "linear";
    m.rope_factor = 4;
  });
  add("LlamaYarn", [](TinyModel& m) {
    m.rope_scaling = "yarn";
    m.rope_factor = 8;
    m.rope_original_context = 256;
    m.head_dim = 16;
  });
  add("LlamaRopeFactors", [](TinyModel& m) {
    m.rope_base = 500000;
    m.rope_factors = {1, 2.5F, 8};
  });
  add("LlamaMultiQueryPaddedVocab", [](TinyModel& m) {
    m.num_heads = 5;
    m.num_kv_heads = 1;
    m.extra_rows = 13;
  });
  add("Qwen2", [](TinyModel& m) {
    m.family = "qwen2";
    m.biases = true;
    m.rope_base = 1000000;
  });
  add("Qwen3", [](TinyModel& m) { m.family = "qwen3"; });
  add("Gemma3", [](TinyModel& m) {
    m.family = "gemma3";
    m.layers = 7;
    m.window = 4;
    m.num_kv_heads = 1;
    m.rope_base = 1000000;
    m.rope_scaling = "linear";
    m.rope_factor = 8;
  });
  add("Gemma3PatternAndSoftcap", [](TinyModel& m) {
    m.family = "gemma3";
    m.layers = 3;
    m.window = 3;
    m.window_pattern = 2;
    m.final_softcap = 4;
  });
  return cases;
}

class EveryFamily : public ::testing::TestWithParam<std::tuple<int, Isa>> {
 protected:
  static const std::vector<Case>& Cases() {
    static const std::vector<Case> cases = Families();
    return cases;
  }
  const TinyModel& tiny() const { return Cases()[std::get<0>(GetParam())].model; }
  Isa isa() const { return std::get<1>(GetParam()); }
};

// One prefill, decoding token by token, and chunks of odd sizes all give the logits of the
// formulas.
TEST_P(EveryFamily, LogitsEqualTheFormulasInDouble) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  const Result<Model> model = Load(tiny().ToGguf());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<TokenId> ids = Ids(21);
  const auto expected = tiny().Logits(std::vector<int>(ids.begin(), ids.end()));
  for (int step : {1, 3, 10, 21}) {
    Result<Session> session = Session::Create(*model, Exact(isa()));
    ASSERT_TRUE(session.ok()) << session.status().message();
    for (std::size_t begin = 0; begin < ids.size(); begin += step) {
      const std::size_t count = std::min<std::size_t>(step, ids.size() - begin);
      const auto logits = session->Append(std::span(ids).subspan(begin, count));
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      ASSERT_EQ(logits->size(), static_cast<std::size_t>(tiny().vocab()));
      const std::vector<double>& want = expected[begin + count - 1];
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR((*logits)[i], want[i], 2e-4)
            << "step " << step << " position " << begin + count - 1 << " id " << i;
    }
  }
}

TEST_P(EveryFamily, ScoresEqualTheFormulasInDouble) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  const Result<Model> model = Load(tiny().ToGguf());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<TokenId> ids = Ids(50);
  const auto logits = tiny().Logits(std::vector<int>(ids.begin(), ids.end()));
  for (std::int64_t chunk : {7, 33, 512}) {
    SessionOptions options = Exact(isa());
    options.chunk = chunk;
    Result<Session> session = Session::Create(*model, options);
    std::vector<double> nll(ids.size() - 1, NAN);
    ASSERT_TRUE(session->Score(ids, nll).ok());
    for (std::size_t i = 0; i < nll.size(); ++i) {
      double sum = 0;
      for (double logit : logits[i]) sum += std::exp(logit);
      ASSERT_NEAR(nll[i], std::log(sum) - logits[i][ids[i + 1]], 5e-4)
          << "chunk " << chunk << " token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryFamily,
                         ::testing::Combine(::testing::Range(0,
                                                             static_cast<int>(Families().size())),
                                            ::testing::ValuesIn(kEveryIsa)),
                         [](const auto& param_info) {
                           return std::string(Families()[std::get<0>(param_info.param)].name) +
                                  "_" + IsaName(std::get<1>(param_info.param));
                         });

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
