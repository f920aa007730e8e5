#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/session.h"
#include "tests/heads/ablation_testing.h"

namespace manyhead {
namespace {

using testing::Ablated;
using ::testing::HasSubstr;
using testing::LoadTiny;
using testing::SomeIds;

class EffectsOf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    testing::TinyModel tiny;
    tiny.family = GetParam();
    tiny.layers = 3;
    tiny.context = 100;
    tiny.MakeWeights(21);
    model_.emplace(LoadTiny(tiny));
    options_.chunk = 32;
    options_.threads = 2;
  }

  /// The loss by a session, which knows nothing of layers that need not be evaluated again.
  double Loss(const Ablation& ablation, const std::vector<TokenId>& ids) const {
    SessionOptions options;
    options.context = std::ssize(ids);
    options.chunk = 32;
    options.threads = 1;
    Session session = Ablated(*model_, options, ablation);
    std::vector<double> nll(ids.size() - 1);
    EXPECT_TRUE(session.Score(ids, nll).ok());
    double sum = 0;
    for (const double x : nll) sum += x;
    return sum / static_cast<double>(nll.size());
  }

  std::optional<Model> model_;
  HeadTextOptions options_;
};

TEST_P(EffectsOf, EachHeadIsThatOfASessionWithoutIt) {
  const std::vector<TokenId> ids = SomeIds(75);
  const Result<HeadEffects> effects = MeasureHeadEffects(*model_, ids, {}, options_);
  ASSERT_TRUE(effects.ok()) << effects.status().message();
  EXPECT_EQ(effects->tokens, 75);
  EXPECT_FALSE(effects->interrupted);
  EXPECT_EQ(effects->loss_before, Loss({}, ids));
  ASSERT_EQ(effects->effects.size(), 12);
  std::size_t i = 0;
  for (std::int64_t layer = 0; layer < 3; ++layer)
    for (std::int64_t head = 0; head < 4; ++head, ++i) {
      EXPECT_EQ(effects->effects[i].head, (HeadId{layer, head}));
      EXPECT_EQ(effects->effects[i].loss_after, Loss({{HeadEdit{{layer, head}}}}, ids)) << i;
      EXPECT_NE(effects->effects[i].loss_after, effects->loss_before) << i;
    }
}

TEST_P(EffectsOf, SomeHeadsInAnyOrder) {
  const std::vector<TokenId> ids = SomeIds(40);
  const std::vector<HeadId> heads = {{2, 3}, {0, 1}, {2, 3}, {2, 0}};
  std::vector<std::pair<std::int64_t, std::int64_t>> progress;
  options_.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.emplace_back(done, total);
  };
  const Result<HeadEffects> effects = MeasureHeadEffects(*model_, ids, heads, options_);
  ASSERT_TRUE(effects.ok());
  ASSERT_EQ(effects->effects.size(), 3);
  const HeadId expected[] = {{0, 1}, {2, 0}, {2, 3}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(effects->effects[i].head, expected[i]);
    EXPECT_EQ(effects->effects[i].loss_after, Loss({{HeadEdit{expected[i]}}}, ids));
  }
  EXPECT_EQ(progress.front(), (std::pair<std::int64_t, std::int64_t>(0, 3)));
  EXPECT_EQ(progress.back(), (std::pair<std::int64_t, std::int64_t>(3, 3)));
}

TEST_P(EffectsOf, ManyHeadsAtOnce) {
  const std::vector<TokenId> ids = SomeIds(60);
  const Ablation ablation = testing::Parse(*model_, "0.k0,1.1=0.5,2.3=-1");
  const Result<AblationLoss> loss = MeasureAblation(*model_, ids, ablation, options_);
  ASSERT_TRUE(loss.ok());
  EXPECT_EQ(loss->tokens, 60);
  EXPECT_EQ(loss->before, Loss({}, ids));
  // The session multiplies fewer rows of weights, which may round in another way.
  EXPECT_NEAR(loss->after, Loss(ablation, ids), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Families, EffectsOf, ::testing::Values("llama", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

class Effects : public ::testing::Test {
 protected:
  static Model Load() {
    testing::TinyModel tiny;
    tiny.MakeWeights(22);
    return LoadTiny(tiny);
  }
  Model model_ = Load();
};

TEST_F(Effects, AnInterruptKeepsWhatIsDone) {
  std::atomic<bool> cancel = false;
  HeadTextOptions options;
  options.cancel = &cancel;
  options.on_progress = [&](std::int64_t done, std::int64_t) { cancel = done == 3; };
  const Result<HeadEffects> effects = MeasureHeadEffects(model_, SomeIds(40), {}, options);
  ASSERT_TRUE(effects.ok());
  EXPECT_TRUE(effects->interrupted);
  EXPECT_EQ(effects->effects.size(), 3);
  cancel = true;
  options.on_progress = nullptr;
  const Status status = MeasureHeadEffects(model_, SomeIds(40), {}, options).status();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("interrupted before anything was known"));
  EXPECT_EQ(MeasureHeadMeans(model_, SomeIds(40), options).status().code(), StatusCode::kIoError);
  EXPECT_EQ(MeasureAblation(model_, SomeIds(40), {}, options).status().code(),
            StatusCode::kIoError);
}

TEST_F(Effects, RefusalsNameTheRange) {
  const auto refusal = [&](const std::vector<TokenId>& ids, const std::vector<HeadId>& heads,
                           const HeadTextOptions& options) {
    const Status status = MeasureHeadEffects(model_, ids, heads, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal(SomeIds(1), {}, {}),
              HasSubstr("MeasureHeadEffects: the text has 1 tokens; expected at least 2"));
  EXPECT_THAT(refusal(SomeIds(20), {}, {.tokens = 21}),
              HasSubstr("the text has 20 tokens; expected at least 21"));
  EXPECT_THAT(refusal(SomeIds(20), {}, {.tokens = 1}), HasSubstr("tokens = 1; expected 0, or 2.."));
  EXPECT_THAT(refusal(SomeIds(20), {}, {.chunk = 0}), HasSubstr("chunk = 0; expected 1.."));
  EXPECT_THAT(refusal(SomeIds(20), {}, {.threads = -1}), HasSubstr("threads = -1; expected 0.."));
  EXPECT_THAT(refusal({3, 259}, {}, {}), HasSubstr("ids[1] = 259; expected 0..258"));
  EXPECT_THAT(refusal(SomeIds(20), {{2, 0}}, {}), HasSubstr("layer = 2; expected 0..1"));
  EXPECT_THAT(refusal(SomeIds(20), {{0, 4}}, {}), HasSubstr("head = 4 of layer 0; expected 0..3"));
}

TEST_F(Effects, OfTheFirstTokensOfAText) {
  const Result<HeadEffects> some = MeasureHeadEffects(model_, SomeIds(60), {}, {.tokens = 25});
  const Result<HeadEffects> all = MeasureHeadEffects(model_, SomeIds(25), {}, {.chunk = 4});
  ASSERT_TRUE(some.ok() && all.ok());
  EXPECT_EQ(some->tokens, 25);
  EXPECT_NEAR(some->effects[5].loss_after, all->effects[5].loss_after, 1e-5);
}

}  // namespace
}  // namespace manyhead
