#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

TEST(AttentionPlanCreate, RefusesWhatIsOutOfRangeAndSaysBothValues) {
  const struct {
    std::function<void(AttentionParams&)> change;
    const char* message;
  } cases[] = {
      {[](auto& p) { p.num_heads = 0; }, "num_heads = 0; expected 1..65536"},
      {[](auto& p) { p.num_kv_heads = -1; }, "num_kv_heads = -1; expected 1..65536"},
      {[](auto& p) { p.num_heads = 7; }, "num_heads = 7 is not a multiple of num_kv_heads = 2"},
      {[](auto& p) { p.head_dim = 0; }, "head_dim = 0; expected 1..1024"},
      {[](auto& p) { p.head_dim = 1025; }, "head_dim = 1025; expected 1..1024"},
      {[](auto& p) { p.head_dim_v = -1; }, "head_dim_v = -1; expected 0..1024"},
      {[](auto& p) { p.head_dim_v = 1025; }, "head_dim_v = 1025; expected 0..1024"},
      {[](auto& p) { p.max_q_len = 0; }, "max_q_len = 0; expected 1..2147483648"},
      {[](auto& p) { p.max_kv_len = 0; }, "max_kv_len = 0; expected 1..2147483648"},
      {[](auto& p) { p.softmax_scale = kNan; }, "softmax_scale = nan; expected a finite number"},
      {[](auto& p) { p.softmax_scale = -kInf; }, "softmax_scale = -inf; expected a finite number"},
      {[](auto& p) { p.window = -1; }, "window = -1; expected 0..9223372036854775807"},
      {[](auto& p) { p.threads = -2; }, "threads = -2; expected 0..1024"},
  };
  for (const auto& [change, message] : cases) {
    AttentionParams params = GoodParams();
    change(params);
    const Result<AttentionPlan> plan = AttentionPlan::Create(params);
    ASSERT_FALSE(plan.ok()) << message;
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(plan.status().message(), std::string("AttentionPlan::Create: ").append(message));
  }
}

TEST(AttentionPlanCreate, RefusesAnInstructionSetThatDoesNotExist) {
  AttentionParams params = GoodParams();
  params.isa = static_cast<Isa>(77);
  const Result<AttentionPlan> plan = AttentionPlan::Create(params);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(plan.status().message(),
              ::testing::StartsWith("AttentionPlan::Create: isa = 77; this CPU runs at most "));
}

TEST(AttentionPlanCreate, ResolvesDefaults) {
  AttentionParams params = GoodParams();
  params.head_dim = 64;
  params.threads = 0;
  const Result<AttentionPlan> plan = AttentionPlan::Create(params);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->params().head_dim_v, 64);
  EXPECT_EQ(plan->params().softmax_scale, 0.125F);
  EXPECT_GE(plan->params().threads, 1);
  EXPECT_TRUE(plan->params().isa.has_value());
  EXPECT_GT(plan->scratch_bytes(), 0);
}

/// Each refused Run must leave the outputs as they were.
class AttentionRunErrors : public ::testing::Test {
 protected:
  AttentionRunErrors() : plan_(MakePlan(GoodParams())) {
    const AttentionCase shape{4, 2, 8, 8};
    filled_.push_back(FillCache(shape, KvType::kF32, KvType::kF32, 16,
                                {{RandomTensor(10 * 16, 1), RandomTensor(10 * 16, 2)},
                                 {RandomTensor(3 * 16, 1), RandomTensor(3 * 16, 2)}},
                                kNan));
  }

  void ExpectRefused(const Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), std::string("AttentionPlan::Run: ").append(message));
    for (const float x : out_) EXPECT_EQ(x, -7.0F) << message;
    for (const float x : lse_) EXPECT_EQ(x, -7.0F) << message;
  }

  Status RunCached(std::int64_t layer, const std::vector<SequenceId>& ids,
                   const std::vector<std::int64_t>& qo_indptr) {
    return plan_.Run(filled_[0].cache, layer, ids, qo_indptr.empty() ? nullptr : qo_indptr.data(),
                     in_.data(), out_.data(), lse_.data());
  }
  Status RunPlain(std::int64_t q_len, std::int64_t kv_len) {
    return plan_.Run(q_len, kv_len, in_.data(), in_.data(), in_.data(), out_.data(), lse_.data());
  }

  AttentionPlan plan_;
  std::vector<FilledCache> filled_;
  std::vector<float> in_ = RandomTensor(20 * 32, 3);
  std::vector<float> out_ = std::vector<float>(20 * 32, -7.0F);
  std::vector<float> lse_ = std::vector<float>(20 * 4, -7.0F);
};

TEST_F(AttentionRunErrors, OverACache) {
  const std::vector<SequenceId>& ids = filled_[0].ids;
  ExpectRefused(RunCached(1, ids, {}), "layer = 1; expected 0..0");
  ExpectRefused(RunCached(-1, ids, {}), "layer = -1; expected 0..0");
  ExpectRefused(RunCached(0, ids, {1, 2, 3}), "qo_indptr[0] = 1; expected 0");
  ExpectRefused(RunCached(0, ids, {0, 2, 1}), "qo_indptr[2] = 1 is less than qo_indptr[1] = 2");
  ExpectRefused(RunCached(0, {ids[0], static_cast<SequenceId>(99)}, {}),
                "sequences[1] = 99 is not a sequence of the cache");
  ExpectRefused(RunCached(0, ids, {0, 4, 7}), "q_len = 7 exceeds max_q_len = 6");
  ExpectRefused(RunCached(0, ids, {0, 1, 5}), "q_len = 4 of request 1 exceeds its kv_len = 3");
  ExpectRefused(RunCached(0, ids, {0, 1, INT64_MAX}),
                "q_len = 9223372036854775807 exceeds max_q_len = 6");
}

TEST_F(AttentionRunErrors, OverACacheOfAnotherShape) {
  const AttentionCase shapes[] = {{4, 4, 8, 8}, {4, 2, 9, 8}, {4, 2, 8, 9}};
  const char* messages[] = {
      "num_kv_heads = 2 of the plan differs from num_kv_heads = 4 of layer 0 in the cache",
      "head_dim = 8 of the plan differs from head_dim = 9 of layer 0 in the cache",
      "head_dim_v = 8 of the plan differs from head_dim_v = 9 of layer 0 in the cache"};
  for (int i = 0; i < 3; ++i) {
    const FilledCache other =
        FillCache(shapes[i], KvType::kF32, KvType::kF32, 16,
                  {{RandomTensor(2 * shapes[i].num_kv_heads * shapes[i].head_dim, 1),
                    RandomTensor(2 * shapes[i].num_kv_heads * shapes[i].head_dim_v, 1)}},
                  kNan);
    ExpectRefused(plan_.Run(other.cache, 0, other.ids, nullptr, in_.data(), out_.data()),
                  messages[i]);
  }
}

TEST_F(AttentionRunErrors, LengthsOverTensors) {
  ExpectRefused(RunPlain(-1, 5), "q_len = -1; expected 0 or more");
  ExpectRefused(RunPlain(1, -5), "kv_len = -5; expected 0 or more");
  ExpectRefused(RunPlain(7, 10), "q_len = 7 exceeds max_q_len = 6");
  ExpectRefused(RunPlain(1, 21), "kv_len = 21 of request 0 exceeds max_kv_len = 20");
}

TEST_F(AttentionRunErrors, MissingTensors) {
  float *in = in_.data(), *out = out_.data();
  ExpectRefused(plan_.Run(2, 3, in, nullptr, in, out), "k = null; expected 3 tokens");
  ExpectRefused(plan_.Run(2, 3, in, in, nullptr, out), "v = null; expected 3 tokens");
  ExpectRefused(plan_.Run(2, 3, nullptr, in, in, out), "q = null; expected 2 tokens");
  ExpectRefused(plan_.Run(2, 3, in, in, in, nullptr), "out = null; expected 2 tokens");
}

TEST_F(AttentionRunErrors, APlanWorksAfterARefusalAndOnNothing) {
  EXPECT_FALSE(RunPlain(7, 10).ok());
  EXPECT_TRUE(RunPlain(0, 10).ok());
  EXPECT_TRUE(RunCached(0, {}, {}).ok());
  for (const float x : out_) EXPECT_EQ(x, -7.0F);
  EXPECT_TRUE(RunCached(0, filled_[0].ids, {0, 0, 2}).ok());
  EXPECT_NE(out_[0], -7.0F);
}

}  // namespace
}  // namespace manyhead::testing
