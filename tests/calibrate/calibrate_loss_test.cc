#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/calibrate.h"
#include "manyhead/session.h"
#include "tests/support/model_files.h"
#include "tests/support/test_name.h"

/// Tests the loss with small caches: int8 on all heads, and a calibrated combination within 40 % of
/// f16's bytes. A model that is absent is a visible skip; tools/fetch_model.py fetches it.

namespace manyhead {
namespace {

constexpr double kInt8Rise = 0.005;
constexpr double kCalibratedRise = 0.02;
constexpr std::int64_t kTokens = 400;

class Loss : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = FindModel(GetParam());
    if (path.empty()) GTEST_SKIP() << "model not fetched: tools/fetch_model.py " << GetParam();
    Result<Model> model = Model::Load(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_.emplace(*std::move(model));
    std::ifstream file(std::string(MANYHEAD_SOURCE_DIR) + "/tests/model/data/long.txt");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    ids_ = *model_->tokenizer().Encode(text, {});
    ASSERT_GE(ids_.size(), kTokens);
    ids_.resize(kTokens);
  }

  double MeanNll(const SessionOptions& wanted) {
    SessionOptions options = wanted;
    options.context = kTokens;
    Result<Session> session = Session::Create(*model_, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    std::vector<double> nll(kTokens - 1);
    EXPECT_TRUE(session->Score(ids_, nll).ok());
    return std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(nll.size());
  }

  std::optional<Model> model_;
  std::vector<TokenId> ids_;
};

TEST_P(Loss, Int8OnAllHeads) {
  const double f16 = MeanNll({});
  const double int8 = MeanNll({.k_type = KvType::kInt8, .v_type = KvType::kInt8});
  RecordProperty("rise", std::to_string(int8 - f16));
  EXPECT_LE(int8 - f16, kInt8Rise);
}

TEST_P(Loss, CalibratedMix) {
  CalibrateOptions options;
  options.budget_fraction = 0.4;
  options.context = kTokens;
  options.probe_tokens = 128;
  const Result<Calibration> mix = CalibrateKv(*model_, ids_, options);
  ASSERT_TRUE(mix.ok()) << mix.status().message();
  EXPECT_LE(mix->after.bytes, mix->budget_bytes);
  EXPECT_LE(mix->after.bytes, mix->before.bytes * 2 / 5);
  const double rise = MeanNll({.kv_policy = FormatKvHeads(mix->heads)}) - MeanNll({});
  RecordProperty("rise", std::to_string(rise));
  EXPECT_LE(rise, kCalibratedRise);
  EXPECT_LE(mix->after.held_out_nll - mix->before.held_out_nll, kCalibratedRise);
  EXPECT_LT(mix->after.mean_nll, MeanNll({.k_type = KvType::kInt4, .v_type = KvType::kInt4}));
}

INSTANTIATE_TEST_SUITE_P(Models, Loss, ::testing::Values("bundled", "gemma3-270m"),
                         [](const auto& test) { return testing::TestName(test.param); });

}  // namespace
}  // namespace manyhead
