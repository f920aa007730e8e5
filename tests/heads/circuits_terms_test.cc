#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "manyhead/circuits.h"
#include "manyhead/session.h"
#include "tests/heads/dense_head.h"

/// The heads' terms of a layer's output against dense matrices.

namespace manyhead {
namespace {

using testing::Dense;
using testing::DenseHead;
using ::testing::HasSubstr;
using testing::MakeTiny;
using testing::Multiply;
using testing::TinyModel;
using testing::Transpose;

/// The weights of every head of layer 0, [head][query][key].
std::vector<std::vector<std::vector<float>>> CaptureFirstLayer(const Model& model,
                                                               const std::vector<TokenId>& ids) {
  const auto heads = static_cast<std::size_t>(model.config().layers[0].num_heads);
  std::vector<std::vector<std::vector<float>>> weights(heads);
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.math = MathMode::kExact;
  options.context = 64;
  Session session = *Session::Create(model, options);
  CaptureOptions capture;
  capture.on_row = [&](const CapturedRow& row) {
    if (row.head.layer == 0)
      weights[static_cast<std::size_t>(row.head.head)].emplace_back(row.weights.begin(),
                                                                    row.weights.end());
  };
  EXPECT_TRUE(session.SetCapture(&capture).ok());
  EXPECT_TRUE(session.Append(ids).ok());
  return weights;
}

/// X of layer 0 before the norm's weights, which W_OV has: embedding rows over their rms.
Dense FirstInputs(const TinyModel& tiny, const std::vector<TokenId>& ids) {
  const auto d = static_cast<std::size_t>(tiny.d_model);
  Dense x(ids.size(), d);
  const std::vector<float>& embedding = tiny.tensors.at("token_embd.weight");
  for (std::size_t t = 0; t < ids.size(); ++t) {
    double mean = 0;
    for (std::size_t i = 0; i < d; ++i) {
      x.at(t, i) = static_cast<double>(embedding[static_cast<std::size_t>(ids[t]) * d + i]) *
                   (tiny.gemma() ? std::sqrt(static_cast<double>(d)) : 1);
      mean += x.at(t, i) * x.at(t, i) / static_cast<double>(d);
    }
    for (std::size_t i = 0; i < d; ++i) x.at(t, i) /= std::sqrt(mean + 1e-6);
  }
  return x;
}

/// A_i X W_i^VO, without the norm after attention: its weights are undone, its factor is left out.
Dense Term(const TinyModel& tiny, const std::vector<std::vector<float>>& weights, const Dense& x,
           const Dense& ov) {
  Dense a(x.rows, x.rows);
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t j = 0; j <= i; ++j) a.at(i, j) = static_cast<double>(weights[i][j]);
  Dense term = Multiply(Multiply(a, x), Transpose(ov));
  const auto post = tiny.tensors.find("blk.0.post_attention_norm.weight");
  if (post == tiny.tensors.end()) return term;
  for (std::size_t t = 0; t < term.rows; ++t)
    for (std::size_t i = 0; i < term.cols; ++i)
      term.at(t, i) /= static_cast<double>(post->second[i]);
  return term;
}

class Terms : public ::testing::TestWithParam<std::string> {};

TEST_P(Terms, TheLayerIsTheSumOverHeadsOfWeightsTimesValueOutput) {
  const TinyModel tiny = MakeTiny(GetParam());
  const Model model = testing::LoadTiny(tiny);
  const std::vector<TokenId> ids = testing::SomeIds(29);
  const auto weights = CaptureFirstLayer(model, ids);
  const Dense x = FirstInputs(tiny, ids);
  std::vector<Dense> terms;
  Dense sum(x.rows, x.cols);
  for (std::int64_t head = 0; head < tiny.num_heads; ++head) {
    terms.push_back(
        Term(tiny, weights[static_cast<std::size_t>(head)], x, DenseHead(tiny, 0, head).Ov()));
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += terms.back().values[i];
  }
  const auto post = tiny.tensors.find("blk.0.post_attention_norm.weight");
  if (post != tiny.tensors.end()) {  // as the decoder norms the sum, so each term
    for (std::size_t t = 0; t < sum.rows; ++t) {
      double mean = 0;
      for (std::size_t i = 0; i < sum.cols; ++i)
        mean += sum.at(t, i) * sum.at(t, i) / static_cast<double>(sum.cols);
      for (std::size_t i = 0; i < sum.cols; ++i) {
        const double factor = static_cast<double>(post->second[i]) / std::sqrt(mean + 1e-6);
        sum.at(t, i) *= factor;
        for (Dense& term : terms) term.at(t, i) *= factor;
      }
    }
  }
  TermOptions options;
  options.math = MathMode::kExact;
  const auto layers = MeasureTerms(model, ids, options);
  ASSERT_TRUE(layers.ok()) << layers.status().message();
  ASSERT_EQ(layers->size(), static_cast<std::size_t>(tiny.layers));
  const LayerTerms& layer = layers->front();
  const double total = Norm(sum) * Norm(sum);
  EXPECT_NEAR(layer.norm, Norm(sum) / std::sqrt(static_cast<double>(ids.size())),
              1e-4 * layer.norm);
  std::vector<double> shares;
  for (std::size_t h = 0; h < terms.size(); ++h) {
    double share = 0;
    for (std::size_t i = 0; i < sum.values.size(); ++i)
      share += terms[h].values[i] * sum.values[i] / total;
    EXPECT_NEAR(layer.heads[h].share, share, 1e-4) << h;
    EXPECT_NEAR(layer.heads[h].norm, Norm(terms[h]) / Norm(sum), 1e-4) << h;
    shares.push_back(share);
  }
  std::sort(shares.rbegin(), shares.rend());
  std::int64_t heads = 0;
  for (double reached = 0; heads < tiny.num_heads && reached < 0.9; ++heads)
    reached += shares[static_cast<std::size_t>(heads)];
  EXPECT_EQ(layer.heads_for_90, heads);
  for (const LayerTerms& any : *layers) {
    EXPECT_LT(any.difference, 1e-4) << any.layer;
    double all = 0;
    for (const HeadTerm& head : any.heads) all += head.share;
    EXPECT_NEAR(all, 1, 1e-5) << any.layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Terms, ::testing::Values("llama", "qwen3", "gemma3"),
                         [](const auto& test) { return test.param; });

TEST(MeasureTerms, ABiasOfTheProjectionBelongsToNoHead) {
  TinyModel tiny = MakeTiny("llama");
  const Model plain = testing::LoadTiny(tiny);
  tiny.tensors["blk.0.attn_output.bias"].assign(static_cast<std::size_t>(tiny.d_model), 0.5F);
  TermOptions options;
  options.math = MathMode::kExact;
  const auto with = MeasureTerms(testing::LoadTiny(tiny), testing::SomeIds(20), options);
  const auto without = MeasureTerms(plain, testing::SomeIds(20), options);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_LT(with->front().difference, 1e-4);
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_NEAR(with->front().heads[h].share, without->front().heads[h].share, 1e-6);
}

TEST(MeasureTerms, ResultsDoNotDependOnThreads) {
  const Model model = testing::LoadTiny(MakeTiny("qwen2"));
  TermOptions one, two;
  one.threads = 1;
  two.threads = 2;
  const auto a = MeasureTerms(model, testing::SomeIds(40), one),
             b = MeasureTerms(model, testing::SomeIds(40), two);
  ASSERT_TRUE(a.ok() && b.ok());
  for (std::size_t l = 0; l < a->size(); ++l)
    for (std::size_t h = 0; h < (*a)[l].heads.size(); ++h)
      EXPECT_EQ((*a)[l].heads[h].share, (*b)[l].heads[h].share);
}

TEST(MeasureTerms, ABadTextOrOptionIsAnError) {
  const Model model = testing::LoadTiny(MakeTiny("llama"));  // a context of 64
  const auto error = [&](const std::vector<TokenId>& ids, const TermOptions& options = {}) {
    return MeasureTerms(model, ids, options).status().message();
  };
  EXPECT_THAT(error({}), HasSubstr("tokens = 0; expected 1..64"));
  EXPECT_THAT(error(testing::SomeIds(65)), HasSubstr("tokens = 65; expected 1..64"));
  EXPECT_THAT(error({1, 259}), HasSubstr("id = 259; expected 0..258"));
  EXPECT_THAT(error({-1}), HasSubstr("id = -1; expected 0..258"));
  TermOptions options;
  options.threads = 1025;
  EXPECT_THAT(error(testing::SomeIds(2), options), HasSubstr("threads = 1025; expected 0..1024"));
}

}  // namespace
}  // namespace manyhead
