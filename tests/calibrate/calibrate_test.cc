#include "manyhead/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/load_tiny.h"

namespace manyhead {
namespace {

using testing::SomeIds;

using ::testing::HasSubstr;

constexpr std::int64_t kContext = 320;

Model Tiny(std::int64_t window = 0, std::int64_t layers = 2) {
  testing::TinyModel tiny;
  tiny.layers = layers;
  tiny.family = window > 0 ? "gemma3" : "llama";
  tiny.window = window;
  tiny.window_pattern = window > 0 ? 2 : 0;
  tiny.context = 4096;
  tiny.MakeWeights(5);
  return testing::LoadTiny(tiny);
}

CalibrateOptions Options(double fraction) {
  CalibrateOptions options;
  options.budget_fraction = fraction;
  options.context = kContext;
  options.math = MathMode::kExact;
  options.threads = 2;
  options.chunk = 80;
  options.probe_tokens = 128;
  return options;
}

/// Returns the loss in a session with these heads, computed by other code.
double SessionLoss(const Model& model, const Calibration& calibration, bool held_out) {
  SessionOptions options;
  options.kv_policy = FormatKvHeads(calibration.heads);
  options.context = kContext;
  options.math = MathMode::kExact;
  options.chunk = 80;
  Session session = *Session::Create(model, options);
  EXPECT_EQ(session.cache().params().capacity_bytes, calibration.after.bytes);
  EXPECT_EQ(session.cache().params().heads, calibration.heads);
  std::vector<double> nll(kContext - 1);
  EXPECT_TRUE(session.Score(SomeIds(kContext), nll).ok());
  const KvUsage usage = session.cache().usage();
  EXPECT_LE(usage.used_bytes + usage.table_bytes, calibration.after.bytes);
  double sum = 0;
  int count = 0;
  for (std::size_t i = 0; i < nll.size(); ++i) {
    if ((i % 192 >= 128) != held_out) continue;
    sum += nll[i];
    ++count;
  }
  EXPECT_EQ(count, held_out ? calibration.held_out_tokens : calibration.fit_tokens);
  return sum / count;
}

TEST(Calibrate, KeepsToTheBudgetAndReportsWhatASessionGives) {
  for (const std::int64_t window : {0, 48}) {
    const Model model = Tiny(window);
    std::int64_t last_bytes = 0;
    for (const double fraction : {0.25, 0.4, 1.0, 2.0}) {
      const Result<Calibration> result = CalibrateKv(model, SomeIds(400), Options(fraction));
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_TRUE(result->verified);
      EXPECT_FALSE(result->interrupted);
      EXPECT_EQ(result->context, kContext);
      EXPECT_LE(result->after.bytes, result->budget_bytes);
      EXPECT_GE(result->after.bytes, last_bytes) << "more room, more kept";
      last_bytes = result->after.bytes;
      EXPECT_DOUBLE_EQ(SessionLoss(model, *result, false), result->after.fit_nll);
      EXPECT_DOUBLE_EQ(SessionLoss(model, *result, true), result->after.held_out_nll);
      const std::int64_t heads = 2 * 2;
      EXPECT_LE(result->evaluated_tokens, 6 * kContext + heads * 128);
      double best = std::numeric_limits<double>::infinity();
      for (const KvLoss& loss : result->candidates) best = std::min(best, loss.fit_nll);
      EXPECT_EQ(result->after.fit_nll, best);
    }
  }
}

// Six heads of 64 pages each: the pool's lists take more than six times what one head's take.
TEST(Calibrate, TheBudgetHoldsForAllHeadsTogether) {
  const Model model = Tiny(0, 3);
  CalibrateOptions options = Options(1);
  options.context = 4096;
  options.chunk = 512;
  options.evict = false;
  options.types = {KvType::kInt8};
  const Result<Calibration> int8 = CalibrateKv(model, SomeIds(4096), options);
  ASSERT_TRUE(int8.ok()) << int8.status().message();
  options.types = {KvType::kInt8, KvType::kInt4};
  options.budget_fraction = 0;
  options.budget_bytes = int8->after.bytes - 1;
  const Result<Calibration> less = CalibrateKv(model, SomeIds(4096), options);
  ASSERT_TRUE(less.ok()) << less.status().message();
  EXPECT_LT(less->after.bytes, int8->after.bytes);
  options.budget_bytes = int8->after.bytes;
  const Result<Calibration> same = CalibrateKv(model, SomeIds(4096), options);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->heads, int8->heads);
}

TEST(Calibrate, RoomForEverythingChangesNothing) {
  const Model model = Tiny();
  const Result<Calibration> result = CalibrateKv(model, SomeIds(400), Options(2.1));
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (const std::vector<KvHeadParams>& layer : result->heads)
    for (const KvHeadParams& head : layer)
      EXPECT_EQ(head, (KvHeadParams{KvType::kF32, KvType::kF32, {}}));
  EXPECT_NEAR(result->after.mean_nll, result->before.mean_nll, 1e-3);
}

// A window that the model has anyway costs nothing, so it is taken before any type gets smaller.
TEST(Calibrate, TheModelsOwnWindowsAreFree) {
  const Model model = Tiny(48);
  CalibrateOptions options = Options(0.9);
  options.evict = false;
  options.types = {KvType::kF16, KvType::kInt4};
  const Result<Calibration> result = CalibrateKv(model, SomeIds(400), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (std::size_t l = 0; l < result->heads.size(); ++l)
    for (const KvHeadParams& head : result->heads[l])
      EXPECT_EQ(head, (KvHeadParams{KvType::kF16, KvType::kF16,
                                    model.config().layers[l].window > 0 ? KvPolicy::Window(48)
                                                                        : KvPolicy::Full()}))
          << l;
  EXPECT_DOUBLE_EQ(result->after.mean_nll, result->before.mean_nll);
}

TEST(Calibrate, OnlyTheTypesAndPoliciesAskedForAreUsed) {
  const Model model = Tiny();
  CalibrateOptions options = Options(0.75);
  options.evict = false;
  options.types = {KvType::kInt8, KvType::kInt4, KvType::kInt8};
  const Result<Calibration> result = CalibrateKv(model, SomeIds(400), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (const std::vector<KvHeadParams>& layer : result->heads)
    for (const KvHeadParams& head : layer) {
      EXPECT_EQ(head.policy, KvPolicy::Full());
      EXPECT_THAT(head.k_type, ::testing::AnyOf(KvType::kInt8, KvType::kInt4));
      EXPECT_THAT(head.v_type, ::testing::AnyOf(KvType::kInt8, KvType::kInt4));
    }
}

TEST(Calibrate, ThreadsChangeNothing) {
  const Model model = Tiny();
  CalibrateOptions options = Options(0.3);
  const Result<Calibration> two = CalibrateKv(model, SomeIds(400), options);
  options.threads = 1;
  const Result<Calibration> one = CalibrateKv(model, SomeIds(400), options);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->heads, two->heads);
  EXPECT_EQ(one->after.mean_nll, two->after.mean_nll);
}

// Ended after any number of steps: an error as long as nothing is known, then a mix within the
// budget that says whether it was scored.
TEST(Calibrate, ACancelledSearchKeepsWhatItKnows) {
  const Model model = Tiny();
  int errors = 0, estimates = 0, scored = 0;
  for (int steps = 1; steps < 40; steps += 2) {
    std::atomic<bool> cancel = false;
    int seen = 0;
    CalibrateOptions options = Options(0.4);
    options.cancel = &cancel;
    std::int64_t total = 0;
    options.on_progress = [&](std::int64_t done, std::int64_t all) {
      EXPECT_LE(done, all);
      total = all;
      if (++seen == steps) cancel = true;
    };
    const Result<Calibration> result = CalibrateKv(model, SomeIds(400), options);
    EXPECT_EQ(total, 6 * kContext + 4 * 128);
    if (!result.ok()) {
      EXPECT_EQ(result.status().code(), StatusCode::kIoError);
      EXPECT_THAT(result.status().message(), HasSubstr("interrupted before"));
      EXPECT_LE(steps, 8) << "two passes of four steps";
      ++errors;
      continue;
    }
    EXPECT_EQ(result->interrupted, cancel.load());
    EXPECT_LE(result->after.bytes, result->budget_bytes);
    ASSERT_EQ(result->heads.size(), 2u);
    EXPECT_EQ(std::isnan(result->after.mean_nll), !result->verified);
    EXPECT_EQ(result->verified, !result->candidates.empty());
    ++(result->verified ? scored : estimates);
  }
  EXPECT_GT(errors, 0);
  EXPECT_GT(estimates, 0);
  EXPECT_GT(scored, 0);
}

struct BadCase {
  std::function<void(CalibrateOptions&)> change;
  const char* message;
};

TEST(Calibrate, RefusesWhatItCannotDo) {
  const Model model = Tiny();
  const BadCase cases[] = {
      {[](auto& o) { o.budget_fraction = 0; },
       "budget_bytes = 0, budget_fraction = 0; expected one of them above 0"},
      {[](auto& o) { o.budget_bytes = 9; }, "budget_bytes = 9, budget_fraction = 0.4"},
      {[](auto& o) { o.budget_fraction = std::nan(""); }, "budget_fraction = nan"},
      {[](auto& o) { o.budget_fraction = -1; }, "budget_fraction = -1"},
      {[](auto& o) { o.budget_fraction = std::numeric_limits<double>::infinity(); },
       "budget_fraction = inf"},
      {[](auto& o) { o.budget_fraction = 1e-9; }, "a budget of 0 bytes; 320 tokens take at least"},
      {[](auto& o) {
         o.evict = false;
         o.types = {KvType::kInt8};
         o.budget_fraction = 0.5;
       },
       "tokens take at least "},
      {[](auto& o) { o.context = 255; }, "context = 255; expected 0, or 256.."},
      {[](auto& o) { o.context = INT64_MAX; }, "context = 9223372036854775807; expected"},
      {[](auto& o) { o.context = 401; }, "the text has 400 tokens; expected at least 401"},
      {[](auto& o) { o.types = {static_cast<KvType>(9)}; }, "types has 9; expected 0..4"},
      {[](auto& o) { o.chunk = 0; }, "chunk = 0; expected 1.."},
      {[](auto& o) { o.probe_tokens = 63; }, "probe_tokens = 63; expected at least 64"},
      {[](auto& o) { o.threads = -1; }, "threads = -1; expected 0..1024"},
  };
  for (const BadCase& bad : cases) {
    CalibrateOptions options = Options(0.4);
    bad.change(options);
    const Result<Calibration> result = CalibrateKv(model, SomeIds(400), options);
    ASSERT_FALSE(result.ok()) << bad.message;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(bad.message));
  }
  CalibrateOptions options = Options(0.4);
  options.context = 0;
  EXPECT_THAT(CalibrateKv(model, {}, options).status().message(),
              HasSubstr("the text has 0 tokens; expected at least 256"));
  std::vector<TokenId> ids = SomeIds(400);
  ids[77] = 259;
  EXPECT_THAT(CalibrateKv(model, ids, options).status().message(),
              HasSubstr("ids[77] = 259; expected 0..258"));
}

TEST(Calibrate, EvenTheLeastBudgetIsMet) {
  const Model model = Tiny();
  CalibrateOptions options = Options(1e-9);
  const std::string message = CalibrateKv(model, SomeIds(400), options).status().message();
  const std::int64_t least = std::stoll(message.substr(message.find("at least ") + 9));
  options.budget_fraction = 0;
  options.budget_bytes = least;
  const Result<Calibration> result = CalibrateKv(model, SomeIds(400), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->after.bytes, least);
  options.budget_bytes = least - 1;
  EXPECT_FALSE(CalibrateKv(model, SomeIds(400), options).ok());
}

}  // namespace
}  // namespace manyhead
