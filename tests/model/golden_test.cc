#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/support/isas.h"
#include "tests/support/model_files.h"

// Real models against logits that another implementation computed: data/*.json say which model
// file, how the reference was made, and how close its first two logits came (min_margin). A model
// that is absent is a visible skip; tools/fetch_model.py brings it.

namespace manyhead {
namespace {

using nlohmann::json;

constexpr double kLogitTolerance = 0.02;
constexpr double kExactNllTolerance = 0.002;
constexpr double kFastNllTolerance = 0.02;
constexpr std::size_t kLong = 100;  // tokens of a prompt whose mean says something

std::string DataFile(const std::string& name) {
  return std::string(MANYHEAD_SOURCE_DIR) + "/tests/model/data/" + name;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double NegativeLogLikelihood(std::span<const float> logits, TokenId target) {
  const double best = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  return best + std::log(sum) - static_cast<double>(logits[target]);
}

class Golden : public ::testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  void SetUp() override {
    const auto& [name, isa] = GetParam();
    MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa);
    const std::string path = FindModel(name);
    if (path.empty()) GTEST_SKIP() << "model not fetched: tools/fetch_model.py " << name;
    std::ifstream file(DataFile(std::string(name) + ".json"));
    golden_ = json::parse(file);
    Result<Model> model = Model::Load(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_.emplace(*std::move(model));
  }

  Session Make(MathMode math, KvType kv) {
    SessionOptions options;
    options.context = std::min<std::int64_t>(2048, model_->config().context_length);
    options.math = math;
    options.k_type = options.v_type = kv;
    options.isa = std::get<1>(GetParam());
    Result<Session> session = Session::Create(*model_, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return *std::move(session);
  }

  double MeanNll(Session& session, const std::vector<TokenId>& ids) {
    std::vector<double> nll(ids.size() - 1);
    EXPECT_TRUE(session.Truncate(0).ok());
    const Status status = session.Score(ids, nll);
    EXPECT_TRUE(status.ok()) << status.message();
    return Mean(nll);
  }

  /// The cases, without the long one on the scalar path: it would take minutes and adds no kernel.
  std::vector<json> Cases() const {
    std::vector<json> cases;
    for (const json& c : golden_["cases"])
      if (std::get<1>(GetParam()) != Isa::kScalar || c["prompt"].size() < kLong) cases.push_back(c);
    return cases;
  }

  void ExpectLogits(const json& expected, std::span<const float> logits) {
    const auto ids = expected["top_ids"].get<std::vector<TokenId>>();
    const auto values = expected["top_logits"].get<std::vector<double>>();
    for (std::size_t i = 0; i < ids.size(); ++i)
      EXPECT_NEAR(logits[ids[i]], values[i], kLogitTolerance) << "token " << ids[i];
  }

  json golden_;
  std::optional<Model> model_;
};

TEST_P(Golden, ExactModeGivesTheReferencesLogitsAndGreedyIds) {
  Session session = Make(MathMode::kExact, KvType::kF32);
  for (const json& expected : Cases()) {
    const auto prompt = expected["prompt"].get<std::vector<TokenId>>();
    SCOPED_TRACE(std::to_string(prompt.size()) + " tokens");
    ASSERT_TRUE(session.Truncate(0).ok());
    const auto logits = session.Append(prompt);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    ExpectLogits(expected, *logits);
    GenerateOptions options;
    options.max_tokens = static_cast<std::int64_t>(expected["greedy"].size());
    const auto result = session.Generate(prompt, options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->ids, expected["greedy"].get<std::vector<TokenId>>());
    EXPECT_NEAR(MeanNll(session, prompt), expected["mean_nll"], kExactNllTolerance);
  }
}

/// Packing moves bytes; the exact product moves them back.
TEST_P(Golden, MappedAndPackedWeightsGiveTheSameExactBits) {
  const Result<Model> mapped =
      Model::Load(model_->path(), {.weights = WeightStorage::kMapped, .threads = 1});
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->packed_bytes(), 0);
  EXPECT_EQ(model_->packed_bytes() > 0, SupportedIsas().back() != Isa::kScalar);
  const auto prompt = golden_["cases"][0]["prompt"].get<std::vector<TokenId>>();
  std::vector<float> packed_logits;
  for (const bool packed : {true, false}) {
    SessionOptions options;
    options.math = MathMode::kExact;
    options.isa = std::get<1>(GetParam());
    Result<Session> session = Session::Create(packed ? *model_ : *mapped, options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    const auto logits = session->Append(prompt);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    if (packed)
      packed_logits.assign(logits->begin(), logits->end());
    else
      EXPECT_TRUE(std::equal(logits->begin(), logits->end(), packed_logits.begin()));
  }
}

// The long case is the text of data/long.txt; short prompts say little about a mean.
TEST_P(Golden, FastModeStaysNearTheReference) {
  Session session = Make(MathMode::kFast, KvType::kF16);
  for (const json& expected : Cases()) {
    const auto prompt = expected["prompt"].get<std::vector<TokenId>>();
    if (prompt.size() < kLong && golden_["model"] != "bundled") continue;
    EXPECT_NEAR(MeanNll(session, prompt), expected["mean_nll"], kFastNllTolerance);
    // Token by token, as in decoding: the low-bit products with int8 activations.
    ASSERT_TRUE(session.Truncate(0).ok());
    std::vector<double> decoded;
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
      const auto logits = session.Append({&prompt[i], 1});
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      decoded.push_back(NegativeLogLikelihood(*logits, prompt[i + 1]));
    }
    EXPECT_NEAR(Mean(decoded), expected["mean_nll"], kFastNllTolerance);
  }
}

TEST_P(Golden, TokenizerGivesTheReferencesIds) {
  for (const json& expected : golden_["cases"]) {
    if (!expected.contains("text")) continue;
    std::string text = expected["text"];
    if (text == "(long.txt)") {
      std::ifstream file(DataFile("long.txt"), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    const auto ids = model_->tokenizer().Encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, expected["prompt"].get<std::vector<TokenId>>()) << text;
  }
}

std::string GoldenName(const ::testing::TestParamInfo<std::tuple<const char*, Isa>>& param_info) {
  std::string name = std::get<0>(param_info.param);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name + "_" + IsaName(std::get<1>(param_info.param));
}

INSTANTIATE_TEST_SUITE_P(, Golden,
                         ::testing::Combine(::testing::Values("bundled"),
                                            ::testing::ValuesIn(kEveryIsa)),
                         GoldenName);
// Nearly a minute a case on the scalar path, whose kernels have tests of their own.
INSTANTIATE_TEST_SUITE_P(Real, Golden,
                         ::testing::Combine(::testing::Values("gemma3-270m", "qwen2.5-coder-0.5b"),
                                            ::testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAmx)),
                         GoldenName);
INSTANTIATE_TEST_SUITE_P(Large, Golden,
                         ::testing::Combine(::testing::Values("qwen2.5-coder-1.5b"),
                                            ::testing::Values(Isa::kAvx2, Isa::kAvx512)),
                         GoldenName);

}  // namespace
}  // namespace manyhead
