// Bad parameters of each feature, bad tensors, biases and masks: refused with the parameter's name
// and both values before anything is written.

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

using ::testing::HasSubstr;

/// A message names the function, the parameter and what else `parts` holds.
void ExpectMessage(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << parts[0] << ": " << status.message();
  for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
}

TEST(AttentionFeatureErrors, ParametersOutOfRange) {
  const struct {
    std::function<void(AttentionParams&)> change;
    std::vector<std::string> parts;
  } cases[] = {
      {[](auto& p) { p.logit_softcap = -1; }, {"logit_softcap = -1", "expected"}},
      {[](auto& p) { p.logit_softcap = kNan; }, {"logit_softcap = nan", "expected"}},
      {[](auto& p) { p.logit_softcap = kInf; }, {"logit_softcap = inf", "expected"}},
      {[](auto& p) { p.logit_softcap = 1e-38F; }, {"logit_softcap = 1e-38", "1e-30..1e+30"}},
      {[](auto& p) { p.logit_softcap = 3e38F; }, {"logit_softcap = 3e+38", "1e-30..1e+30"}},
      {[](auto& p) { p.softmax_scale = kInf; }, {"softmax_scale = inf", "expected"}},
      {[](auto& p) { p.window = -3; }, {"window = -3", "expected"}},
      {[](auto& p) { p.window_right = -1; }, {"window_right = -1", "expected"}},
      {[](auto& p) { p.num_sink_tokens = -2; }, {"num_sink_tokens = -2", "expected"}},
      {[](auto& p) {
         p.alibi_slopes = {1, 2, 3};
       },
       {"alibi_slopes", "3", "num_heads = 4"}},
      {[](auto& p) { p.alibi_slopes = std::vector<float>(5); }, {"alibi_slopes", "5", "4"}},
      {[](auto& p) {
         p.alibi_slopes = {1, 2, kNan, 3};
       },
       {"alibi_slopes[2] = nan", "finite"}},
      {[](auto& p) {
         p.alibi_slopes = {1, -kInf, 2, 3};
       },
       {"alibi_slopes[1] = -inf", "finite"}},
      {[](auto& p) { p.sink_logits = {1}; }, {"sink_logits", "1", "num_heads = 4"}},
      {[](auto& p) {
         p.sink_logits = {0, 0, 0, kInf};
       },
       {"sink_logits[3] = inf", "expected"}},
      {[](auto& p) {
         p.sink_logits = {kNan, 0, 0, 0};
       },
       {"sink_logits[0] = nan", "expected"}},
  };
  for (const auto& [change, parts] : cases) {
    AttentionParams params = GoodParams();
    change(params);
    const Result<AttentionPlan> plan = AttentionPlan::Create(params);
    ASSERT_FALSE(plan.ok()) << parts[0];
    ExpectMessage(plan.status(), StatusCode::kInvalidArgument, parts);
    EXPECT_THAT(plan.status().message(), ::testing::StartsWith("AttentionPlan::Create: "));
  }
}

TEST(AttentionFeatureErrors, ParametersAtTheEdgeOfTheirRange) {
  AttentionParams params = GoodParams();
  params.window = params.num_sink_tokens = INT64_MAX;
  params.window_right = INT64_MAX;
  params.alibi_slopes = {-3e38F, 3e38F, 0, -1};
  params.sink_logits = {-kInf, 3e38F, -3e38F, 0};
  params.logit_softcap = 1e-30F;
  const Result<AttentionPlan> plan = AttentionPlan::Create(params);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
}

// AMX tiles multiply weights; attention's kernels are those of AVX-512.
TEST(AttentionFeatureErrors, AmxIsNoFasterChoiceThanAvx512) {
  if (SupportedIsas().back() != Isa::kAmx) GTEST_SKIP() << "this CPU has no AMX";
  AttentionParams params = GoodParams();
  params.isa = Isa::kAvx512;
  params.strict = true;
  const Result<AttentionPlan> plan = AttentionPlan::Create(params);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(plan->Explain(KvType::kF32, KvType::kF32, 1, 5)->refused.empty());
}

TEST(AttentionFeatureErrors, StrictRefusesALowerInstructionSet) {
  AttentionParams params = GoodParams();
  params.strict = true;
  params.isa = SupportedIsas().back();
  EXPECT_TRUE(AttentionPlan::Create(params).ok());
  if (SupportedIsas().size() == 1) GTEST_SKIP() << "this CPU has one instruction set";
  params.isa = Isa::kScalar;
  const Result<AttentionPlan> plan = AttentionPlan::Create(params);
  ASSERT_FALSE(plan.ok());
  ExpectMessage(plan.status(), StatusCode::kUnsupported,
                {"scalar", IsaName(SupportedIsas().back())});
}

// A dozen queries over a long sequence would be split over threads, had the plan scratch for it.
TEST(AttentionFeatureErrors, StrictRefusesASlowerRun) {
  AttentionParams params = GoodParams();
  params.num_kv_heads = 1;
  params.max_q_len = 12;
  params.max_kv_len = 1100;
  params.threads = 2;
  params.isa = SupportedIsas().back();
  AttentionPlan lenient = MakePlan(params);
  params.strict = true;
  AttentionPlan strict = MakePlan(params);
  const std::vector<float> q = RandomTensor(12 * 32, 1), kv = RandomTensor(1100 * 8, 2);
  std::vector<float> out(12 * 32, -7.0F);
  const auto run = [&](AttentionPlan& plan, std::int64_t q_len) {
    return plan.Run(q_len, 1100, q.data(), kv.data(), kv.data(), out.data());
  };
  const auto explain = [&](std::int64_t q_len) {
    return *lenient.Explain(KvType::kF32, KvType::kF32, q_len, 1100);
  };
  ASSERT_FALSE(explain(12).refused.empty());
  const std::string reason = explain(12).refused[0];
  ExpectMessage(run(strict, 12), StatusCode::kUnsupported,
                {"AttentionPlan::Run: strict", reason.substr(reason.find("partial states"))});
  for (const float x : out) ASSERT_EQ(x, -7.0F);
  EXPECT_TRUE(explain(1).refused.empty());
  EXPECT_TRUE(run(strict, 1).ok());
  EXPECT_TRUE(run(lenient, 12).ok());
}

class AttentionTensorErrors : public ::testing::Test {
 protected:
  /// Good tensors of two requests of three queries.
  AttentionTensors Good() {
    AttentionTensors tensors;
    tensors.batch = 2;
    tensors.q_len = 3;
    tensors.kv_len = 10;
    tensors.q = {in_.data(), 96, 32, 8};
    tensors.k = {in_.data(), 160, 16, 8};
    tensors.v = {in_.data(), 160, 16, 8};
    tensors.out = {out_.data(), 96, 32, 8};
    tensors.lse = {lse_.data(), 12, 4, 1};
    return tensors;
  }

  void ExpectRefused(const std::function<void(AttentionTensors&)>& change,
                     const std::vector<std::string>& parts) {
    AttentionTensors tensors = Good();
    change(tensors);
    const Status status = plan_.Run(tensors);
    ExpectMessage(status, StatusCode::kInvalidArgument, parts);
    EXPECT_THAT(status.message(), ::testing::StartsWith("AttentionPlan::Run: "));
    ExpectUntouched(parts[0]);
  }

  void ExpectUntouched(const std::string& what) {
    for (const float x : out_) ASSERT_EQ(x, -7.0F) << what;
    for (const float x : lse_) ASSERT_EQ(x, -7.0F) << what;
  }

  AttentionPlan plan_ = MakePlan(GoodParams());
  std::vector<float> in_ = RandomTensor(800, 3);
  std::vector<float> out_ = std::vector<float>(400, -7.0F);
  std::vector<float> lse_ = std::vector<float>(50, -7.0F);
  std::vector<std::int64_t> lengths_ = {10, 4};
  std::vector<std::uint8_t> shown_ = std::vector<std::uint8_t>(200, 1);
};

TEST_F(AttentionTensorErrors, Lengths) {
  ExpectRefused([](auto& t) { t.batch = -1; }, {"batch = -1", "expected"});
  ExpectRefused([](auto& t) { t.q_len = -2; }, {"q_len = -2", "expected"});
  ExpectRefused([](auto& t) { t.kv_len = -4; }, {"kv_len = -4", "expected"});
  ExpectRefused([](auto& t) { t.q_len = 4; }, {"batch = 2", "q_len = 4", "max_q_len = 6"});
  ExpectRefused([](auto& t) { t.batch = 3; }, {"batch = 3", "q_len = 3", "max_q_len = 6"});
  ExpectRefused([](auto& t) { t.batch = INT64_MAX; }, {"max_q_len = 6"});
  ExpectRefused([](auto& t) { t.q_len = INT64_MAX; }, {"max_q_len = 6"});
  ExpectRefused(
      [](auto& t) {
        t.batch = std::int64_t{1} << 62;  // times 4 is 0, were it to wrap
        t.q_len = 4;
      },
      {"batch = 4611686018427387904", "q_len = 4", "max_q_len = 6"});
  ExpectRefused([](auto& t) { t.kv_len = 21; }, {"kv_len = 21", "max_kv_len = 20"});
  ExpectRefused([](auto& t) { t.kv_len = INT64_MAX; }, {"kv_len = ", "max_kv_len = 20"});
  ExpectRefused(
      [this](auto& t) {
        lengths_ = {10, 11};
        t.kv_lens = lengths_.data();
      },
      {"kv_lens[1] = 11", "10"});
  ExpectRefused(
      [this](auto& t) {
        lengths_ = {-1, 3};
        t.kv_lens = lengths_.data();
      },
      {"kv_lens[0] = -1", "10"});
  for (const std::int64_t start : {INT64_MAX, INT64_MIN}) {
    ExpectRefused(
        [&](auto& t) {
          lengths_ = {0, start};
          t.query_starts = lengths_.data();
        },
        {"query_starts[1] = " + std::to_string(start), "expected"});
  }
}

TEST_F(AttentionTensorErrors, TypesThatOnlyCachesHave) {
  ExpectRefused([](auto& t) { t.k_type = KvType::kInt8; }, {"k_type", "int8", "f32"});
  ExpectRefused([](auto& t) { t.v_type = KvType::kInt4; }, {"v_type", "int4", "f32"});
  ExpectRefused([](auto& t) { t.v_type = static_cast<KvType>(77); }, {"v_type = ", "f32"});
}

TEST_F(AttentionTensorErrors, MissingTensors) {
  ExpectRefused([](auto& t) { t.q.data = nullptr; }, {"q = null", "expected"});
  ExpectRefused([](auto& t) { t.k.data = nullptr; }, {"k = null", "expected"});
  ExpectRefused([](auto& t) { t.v.data = nullptr; }, {"v = null", "expected"});
  ExpectRefused([](auto& t) { t.out.data = nullptr; }, {"out = null", "expected"});
}

TEST_F(AttentionTensorErrors, RowsOfBiasAndMaskShorterThanTheKeys) {
  ExpectRefused(
      [this](auto& t) {
        t.bias.bias = {in_.data(), 9, 0, 0, 9};
      },
      {"bias", "kv_len = 9", "10"});
  ExpectRefused(
      [this](auto& t) {
        t.bias.bias = {in_.data(), 0, 0, 0, 0};
      },
      {"bias", "kv_len = 0", "10"});
  ExpectRefused(
      [this](auto& t) {
        t.bias.mask = {shown_.data(), 5, 0, 0, 5};
      },
      {"mask", "kv_len = 5", "10"});
  // A length of each request's valid tokens suffices.
  AttentionTensors tensors = Good();
  lengths_ = {9, 4};
  tensors.kv_lens = lengths_.data();
  tensors.bias.bias = {in_.data(), 9, 0, 0, 9};
  const Status status = plan_.Run(tensors);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(AttentionTensorErrors, NothingToDo) {
  AttentionTensors tensors = Good();
  tensors.batch = 0;
  EXPECT_TRUE(plan_.Run(tensors).ok());
  tensors = Good();
  tensors.q_len = 0;
  EXPECT_TRUE(plan_.Run(tensors).ok());
  ExpectUntouched("nothing");
  EXPECT_TRUE(plan_.Run(Good()).ok());
  EXPECT_NE(out_[0], -7.0F);
}

TEST_F(AttentionTensorErrors, WeightsNeedTheirTensors) {
  AttentionTensors tensors = Good();
  std::vector<float> weights(300, -7.0F);
  const auto refused = [&](const AttentionTensors& bad, LogitStage stage, float* to,
                           const std::vector<std::string>& parts) {
    const Status status = plan_.Weights(bad, stage, to);
    ExpectMessage(status, StatusCode::kInvalidArgument, parts);
    EXPECT_THAT(status.message(), ::testing::StartsWith("AttentionPlan::Weights: "));
    for (const float x : weights) ASSERT_EQ(x, -7.0F) << parts[0];
  };
  refused(tensors, LogitStage::kScores, nullptr, {"weights = null"});
  refused(tensors, static_cast<LogitStage>(9), weights.data(), {"stage = 9", "expected"});
  tensors.lse.data = nullptr;
  refused(tensors, LogitStage::kProbs, weights.data(), {"lse = null"});
  tensors = Good();
  tensors.kv_len = 21;
  refused(tensors, LogitStage::kScores, weights.data(), {"kv_len = 21", "max_kv_len = 20"});
  tensors = Good();
  tensors.k.data = nullptr;
  refused(tensors, LogitStage::kScores, weights.data(), {"k = null"});
  tensors = Good();
  tensors.v.data = nullptr;  // not used
  tensors.out.data = nullptr;
  EXPECT_TRUE(plan_.Weights(tensors, LogitStage::kScores, weights.data()).ok());
}

TEST_F(AttentionTensorErrors, BiasOverACache) {
  const FilledCache filled = FillCache({4, 2, 8, 8}, KvType::kF32, KvType::kF32, 16,
                                       {{RandomTensor(10 * 16, 1), RandomTensor(10 * 16, 2)},
                                        {RandomTensor(3 * 16, 1), RandomTensor(3 * 16, 2)}},
                                       kNan);
  const auto run = [&](const AttentionBias& bias) {
    return plan_.Run(filled.cache, 0, filled.ids, nullptr, in_.data(), out_.data(), lse_.data(),
                     bias);
  };
  AttentionBias bias;
  bias.bias = {in_.data(), 9, 0, 0, 0};
  ExpectMessage(run(bias), StatusCode::kInvalidArgument, {"bias", "kv_len = 9", "10"});
  bias = {};
  bias.mask = {shown_.data(), 2, 0, 0, 0};
  ExpectMessage(run(bias), StatusCode::kInvalidArgument, {"mask", "kv_len = 2", "10"});
  ExpectUntouched("bias");
  bias.mask.kv_len = 10;
  EXPECT_TRUE(run(bias).ok());
}

TEST(AttentionExplain, ScratchCountsThePlacesOfRequests) {
  AttentionParams params = GoodParams();
  const std::int64_t few = MakePlan(params).scratch_bytes();
  params.max_q_len += 10000;  // as many requests of one query each
  EXPECT_GE(MakePlan(params).scratch_bytes() - few, 10000 * 8 * 8);
}

TEST(AttentionExplain, SaysWhatRunsAndWhatWasRefused) {
  AttentionParams params = GoodParams();
  params.isa = Isa::kScalar;
  params.head_dim = 16;
  const AttentionPlan plan = MakePlan(params);
  const Result<AttentionExplanation> decode = plan.Explain(KvType::kF16, KvType::kF16, 1, 20);
  ASSERT_TRUE(decode.ok()) << decode.status().message();
  EXPECT_FALSE(decode->kernel.empty());
  EXPECT_EQ(decode->isa, Isa::kScalar);
  EXPECT_EQ(decode->threads, 1);
  EXPECT_EQ(decode->scratch_bytes, plan.scratch_bytes());
  EXPECT_EQ(decode->bytes, 20 * 2 * (16 + 16) * 2);  // S * K * (D + Dv) * bytes of f16
  EXPECT_EQ(decode->flops, 20 * 4 * 2 * (16 + 16));  // S * H * 2 (D + Dv)
  EXPECT_GE(decode->tile_rows, 1);
  EXPECT_GE(decode->block_keys, 1);
  EXPECT_GE(decode->items, 1);
  if (SupportedIsas().size() > 1) {
    ASSERT_FALSE(decode->refused.empty());
    EXPECT_THAT(decode->refused[0], HasSubstr("scalar"));
  }
  EXPECT_THAT(decode->ToString(), HasSubstr(decode->kernel));
  // Causal: queries 17..20 of 20 see 17 + 18 + 19 + 20 keys.
  const Result<AttentionExplanation> append = plan.Explain(KvType::kF16, KvType::kInt8, 4, 20);
  ASSERT_TRUE(append.ok());
  EXPECT_EQ(append->flops, (17 + 18 + 19 + 20) * 4 * 2 * (16 + 16));
  for (const auto& [q_len, kv_len] : {std::pair{7, 20}, {1, 21}, {-1, 5}, {1, -1}}) {
    EXPECT_EQ(plan.Explain(KvType::kF32, KvType::kF32, q_len, kv_len).status().code(),
              StatusCode::kInvalidArgument)
        << q_len << " " << kv_len;
  }
  EXPECT_EQ(plan.Explain(static_cast<KvType>(77), KvType::kF32, 1, 5).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace manyhead::testing
