#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/isa.h"
#include "manyhead/session.h"
#include "tests/heads/ablation_testing.h"

/// Tests an ablation's effect on a session's logits and bytes, against models whose weights were
/// changed by plain code, computed in double precision.

namespace manyhead {
namespace {

using testing::Ablated;
using testing::Distance;
using testing::Exact;
using testing::LoadTiny;
using testing::LogitsAfter;
using testing::Parse;
using testing::ScaleOutput;
using testing::SomeIds;
using testing::TinyModel;

constexpr double kTolerance = 1e-4;

class AblationOf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tiny_.family = GetParam();
    tiny_.layers = 3;
    tiny_.num_heads = 6;
    tiny_.num_kv_heads = 3;
    tiny_.biases = tiny_.family == "qwen2";
    tiny_.MakeWeights(11);
  }

  std::vector<double> Reference(const TinyModel& tiny, int tokens) const {
    const std::vector<TokenId> ids = SomeIds(tokens);
    return tiny.Logits({ids.begin(), ids.end()}).back();
  }

  TinyModel tiny_;
};

TEST_P(AblationOf, AHeadOffIsItsColumnsOfWoZeroed) {
  const Model model = LoadTiny(tiny_);
  const std::vector<double> whole = Reference(tiny_, 30);
  for (const auto& [layer, head] : {std::pair(0, 0), {1, 3}, {2, 5}}) {
    TinyModel zeroed = tiny_;
    ScaleOutput(zeroed, layer, head, 0);
    Session session = Ablated(model, Exact(), {{HeadEdit{{layer, head}}}});
    const std::vector<float> logits = LogitsAfter(session, SomeIds(30));
    EXPECT_LT(Distance(logits, Reference(zeroed, 30)), kTolerance) << layer << "." << head;
    EXPECT_GT(Distance(logits, whole), 100 * kTolerance) << layer << "." << head;
  }
}

TEST_P(AblationOf, EditsOfManyHeadsTogether) {
  const Model model = LoadTiny(tiny_);
  TinyModel changed = tiny_;
  ScaleOutput(changed, 0, 2, 0);  // together with the next a whole KV head
  ScaleOutput(changed, 0, 3, 0);
  ScaleOutput(changed, 1, 0, 0.5F);
  ScaleOutput(changed, 1, 4, -2);
  ScaleOutput(changed, 2, 1, 0);
  Session session = Ablated(model, Exact(), Parse(model, "0.k1,1.0=0.5,1.4=-2,2.1"));
  EXPECT_LT(Distance(LogitsAfter(session, SomeIds(30)), Reference(changed, 30)), kTolerance);
  // Token by token, after the prompt.
  for (int i = 30; i < 36; ++i) {
    const std::vector<TokenId> next = {SomeIds(i + 1).back()};
    EXPECT_LT(Distance(LogitsAfter(session, next), Reference(changed, i + 1)), kTolerance) << i;
  }
}

// A constant in place of a head's output is the same as a bias after W_O.
TEST_P(AblationOf, AMeanIsABiasBehindWo) {
  const Model model = LoadTiny(tiny_);
  Ablation ablation = Parse(model, "1.2=mean,1.3=mean,1.0=mean");
  HeadTextOptions options;
  options.math = MathMode::kExact;
  ablation.means = *MeasureHeadMeans(model, SomeIds(50, 3), options);
  TinyModel changed = tiny_;
  const std::vector<float>& w = tiny_.tensors.at("blk.1.attn_output.weight");
  std::vector<float>& bias = changed.tensors["blk.1.attn_output.bias"];
  const auto D = static_cast<std::size_t>(tiny_.head_dim), width = 6 * D;
  for (std::size_t row = 0; row < static_cast<std::size_t>(tiny_.d_model); ++row) {
    double sum = 0;
    for (const std::size_t head : {2, 3, 0})
      for (std::size_t i = head * D; i < (head + 1) * D; ++i)
        sum += static_cast<double>(w[row * width + i]) * static_cast<double>(ablation.means[1][i]);
    bias.push_back(static_cast<float>(sum));
  }
  for (const int head : {2, 3, 0}) ScaleOutput(changed, 1, head, 0);
  Session session = Ablated(model, Exact(), ablation);
  EXPECT_LT(Distance(LogitsAfter(session, SomeIds(30)), Reference(changed, 30)), kTolerance);
  // Heads 2 and 3 are all that read KV head 1.
  EXPECT_EQ(session.cache().usage().head_bytes[1][1], 0);
  EXPECT_GT(session.cache().usage().head_bytes[1][0], 0);
}

TEST_P(AblationOf, BytesFallByTheShareOfTheKvHead) {
  const Model model = LoadTiny(tiny_);
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    SessionOptions options = Exact();
    options.k_type = options.v_type = type;
    Session whole = *Session::Create(model, options);
    Session less = Ablated(model, options, Parse(model, "0.k1,2.k0-1,1.3"));
    LogitsAfter(whole, SomeIds(200));
    LogitsAfter(less, SomeIds(200));
    const KvUsage all = whole.cache().usage(), rest = less.cache().usage();
    std::int64_t removed = 0;
    for (const auto& [layer, head] : {std::pair(0, 1), {2, 0}, {2, 1}}) {
      EXPECT_EQ(rest.head_bytes[layer][head], 0);
      removed += all.head_bytes[layer][head];
    }
    EXPECT_EQ(all.used_bytes - rest.used_bytes, removed) << KvTypeName(type);
    EXPECT_EQ(rest.used_bytes, all.used_bytes / 9 * 6) << KvTypeName(type);
    EXPECT_LT(less.cache().bytes_per_token(), whole.cache().bytes_per_token());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AblationOf,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Ablation, EveryInstructionSetAndThreadCount) {
  TinyModel tiny;
  tiny.MakeWeights(5);
  const Model model = LoadTiny(tiny);
  TinyModel changed = tiny;
  ScaleOutput(changed, 0, 0, 0);
  ScaleOutput(changed, 0, 1, 0);
  ScaleOutput(changed, 1, 2, 3);
  const std::vector<TokenId> ids = SomeIds(60);
  const std::vector<double> expected = changed.Logits({ids.begin(), ids.end()}).back();
  for (const Isa isa : SupportedIsas()) {
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      SessionOptions options = Exact();
      options.isa = isa;
      options.threads = threads;
      Session session = Ablated(model, options, Parse(model, "0.k0,1.2=3"));
      const std::vector<float> logits = LogitsAfter(session, ids);
      EXPECT_LT(Distance(logits, expected), kTolerance) << IsaName(isa);
      if (first.empty()) first = logits;
      EXPECT_EQ(logits, first) << IsaName(isa) << threads;
    }
  }
}

// Means of one token are its values, of more the means over the text.
TEST(HeadMeans, OfEqualWeightsAreMeansOfMeans) {
  TinyModel tiny;
  tiny.MakeWeights(7);
  std::fill(tiny.tensors.at("blk.0.attn_q.weight").begin(),
            tiny.tensors.at("blk.0.attn_q.weight").end(), 0.0F);
  const Model model = LoadTiny(tiny);
  HeadTextOptions options;
  options.math = MathMode::kExact;
  options.chunk = 7;
  for (const int tokens : {1, 20}) {
    const std::vector<TokenId> ids = SomeIds(tokens);
    const auto means = MeasureHeadMeans(model, ids, options);
    ASSERT_TRUE(means.ok()) << means.status().message();
    // The query is zero: a token's weights are all 1 / (t + 1).
    const auto d = static_cast<std::size_t>(tiny.d_model),
               D = static_cast<std::size_t>(tiny.head_dim);
    const std::vector<float>& norm = tiny.tensors.at("blk.0.attn_norm.weight");
    const std::vector<float>& w = tiny.tensors.at("blk.0.attn_v.weight");
    std::vector<double> sum(2 * D), mean(2 * D);
    for (int t = 0; t < tokens; ++t) {
      const float* x = tiny.tensors.at("token_embd.weight").data() +
                       static_cast<std::size_t>(ids[static_cast<std::size_t>(t)]) * d;
      double square = 0;
      for (std::size_t i = 0; i < d; ++i) square += double{x[i]} * double{x[i]};
      const double scale = 1 / std::sqrt(square / static_cast<double>(d) + 1e-6);
      for (std::size_t r = 0; r < 2 * D; ++r) {
        for (std::size_t i = 0; i < d; ++i)
          sum[r] += double{w[r * d + i]} * double{x[i]} * scale * double{norm[i]};
        mean[r] += sum[r] / (t + 1) / tokens;
      }
    }
    ASSERT_EQ((*means)[0].size(), 4 * D);
    for (std::size_t h = 0; h < 4; ++h)
      for (std::size_t i = 0; i < D; ++i)
        EXPECT_NEAR((*means)[0][h * D + i], mean[h / 2 * D + i], 5e-4);  // f16 values
  }
}

}  // namespace
}  // namespace manyhead
