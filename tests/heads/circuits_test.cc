// Circuits against dense matrices: plain loops in double over the tensors of small models.

#include "manyhead/circuits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/heads/classes_testing.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;
using testing::TinyModel;

struct Dense {
  std::size_t rows = 0, cols = 0;
  std::vector<double> values;

  Dense(std::size_t r, std::size_t c) : rows(r), cols(c), values(r * c, 0.0) {}
  double& at(std::size_t r, std::size_t c) { return values[r * cols + c]; }
  double at(std::size_t r, std::size_t c) const { return values[r * cols + c]; }
};

Dense Multiply(const Dense& a, const Dense& b) {
  Dense c(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.cols; ++k)
      for (std::size_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

Dense Transpose(const Dense& a) {
  Dense t(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

double Norm(const Dense& a) {
  double sum = 0;
  for (const double v : a.values) sum += v * v;
  return std::sqrt(sum);
}

Dense Full(const LowRankMatrix& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.rows),
             cols = static_cast<std::size_t>(matrix.cols),
             rank = static_cast<std::size_t>(matrix.rank);
  EXPECT_EQ(matrix.left.size(), rows * rank);
  EXPECT_EQ(matrix.right.size(), cols * rank);
  Dense full(rows, cols);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      for (std::size_t k = 0; k < rank; ++k)
        full.at(i, j) += matrix.left[i * rank + k] * matrix.right[j * rank + k];
  return full;
}

/// Singular values, falling: Jacobi rotations of the columns until they are orthogonal.
std::vector<double> SingularValues(Dense a) {
  for (int sweep = 0; sweep < 60; ++sweep)
    for (std::size_t p = 0; p < a.cols; ++p)
      for (std::size_t q = p + 1; q < a.cols; ++q) {
        double alpha = 0, beta = 0, gamma = 0;
        for (std::size_t i = 0; i < a.rows; ++i) {
          alpha += a.at(i, p) * a.at(i, p);
          beta += a.at(i, q) * a.at(i, q);
          gamma += a.at(i, p) * a.at(i, q);
        }
        if (std::abs(gamma) < 1e-300) continue;
        const double zeta = (beta - alpha) / (2 * gamma);
        const double t = (zeta >= 0 ? 1 : -1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (std::size_t i = 0; i < a.rows; ++i) {
          const double x = a.at(i, p), y = a.at(i, q);
          a.at(i, p) = c * x - s * y;
          a.at(i, q) = s * x + c * y;
        }
      }
  std::vector<double> values;
  for (std::size_t j = 0; j < a.cols; ++j) {
    double sum = 0;
    for (std::size_t i = 0; i < a.rows; ++i) sum += a.at(i, j) * a.at(i, j);
    values.push_back(std::sqrt(sum));
  }
  std::sort(values.rbegin(), values.rend());
  return values;
}

TinyModel MakeTiny(const std::string& family) {
  TinyModel tiny;
  tiny.family = family;
  tiny.layers = 3;
  tiny.biases = family == "qwen2";
  if (family == "gemma3") {
    tiny.window = 32;
    tiny.window_pattern = 2;
  }
  tiny.MakeWeights(11);
  return tiny;
}

/// W_QK and W_OV of the file's tensors, the norms' weights folded in.
class DenseHead {
 public:
  DenseHead(const TinyModel& tiny, std::int64_t layer, std::int64_t head)
      : tiny_(tiny), block_("blk." + std::to_string(layer) + "."), head_(head) {}

  Dense Qk() const {
    return Multiply(Transpose(Rows("attn_q", head_, "attn_q_norm")),
                    Rows("attn_k", KvHead(), "attn_k_norm"));
  }
  Dense Ov() const {
    const auto d = static_cast<std::size_t>(tiny_.d_model),
               D = static_cast<std::size_t>(tiny_.head_dim);
    const std::vector<float>& output = tiny_.tensors.at(block_ + "attn_output.weight");
    const auto post = tiny_.tensors.find(block_ + "post_attention_norm.weight");
    Dense block(d, D);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < D; ++j) {
        const auto column = static_cast<std::size_t>(head_) * D + j;
        block.at(i, j) =
            static_cast<double>(output[i * static_cast<std::size_t>(tiny_.num_heads) * D + column]);
        if (post != tiny_.tensors.end()) block.at(i, j) *= static_cast<double>(post->second[i]);
      }
    return Multiply(block, Rows("attn_v", KvHead(), "none"));
  }

 private:
  std::int64_t KvHead() const { return head_ / (tiny_.num_heads / tiny_.num_kv_heads); }
  Dense Rows(const std::string& name, std::int64_t index, const std::string& norm) const {
    const auto d = static_cast<std::size_t>(tiny_.d_model),
               D = static_cast<std::size_t>(tiny_.head_dim);
    const std::vector<float>& weights = tiny_.tensors.at(block_ + name + ".weight");
    const std::vector<float>& inputs = tiny_.tensors.at(block_ + "attn_norm.weight");
    const auto outputs = tiny_.tensors.find(block_ + norm + ".weight");
    Dense rows(D, d);
    for (std::size_t i = 0; i < D; ++i)
      for (std::size_t j = 0; j < d; ++j) {
        rows.at(i, j) =
            static_cast<double>(weights[(static_cast<std::size_t>(index) * D + i) * d + j]) *
            static_cast<double>(inputs[j]);
        if (outputs != tiny_.tensors.end())
          rows.at(i, j) *= static_cast<double>(outputs->second[i]);
      }
    return rows;
  }

  const TinyModel& tiny_;
  std::string block_;
  std::int64_t head_;
};

class Circuits : public ::testing::TestWithParam<std::string> {};

TEST_P(Circuits, FactorsMultiplyToTheMatrices) {
  const TinyModel tiny = MakeTiny(GetParam());
  const Model model = testing::LoadTiny(tiny);
  for (std::int64_t layer = 0; layer < tiny.layers; ++layer) {
    const auto circuits = LayerCircuits::Create(model, layer);
    ASSERT_TRUE(circuits.ok());
    EXPECT_EQ(circuits->layer(), layer);
    EXPECT_EQ(circuits->num_heads(), tiny.num_heads);
    EXPECT_EQ(circuits->d_model(), tiny.d_model);
    for (std::int64_t head = 0; head < tiny.num_heads; ++head) {
      const DenseHead dense(tiny, layer, head);
      const Dense qk = Full(circuits->Qk(head)), ov = Full(circuits->Ov(head));
      const Dense expected_qk = dense.Qk(), expected_ov = dense.Ov();
      for (std::size_t i = 0; i < qk.values.size(); ++i) {
        ASSERT_NEAR(qk.values[i], expected_qk.values[i], 1e-12);
        ASSERT_NEAR(ov.values[i], expected_ov.values[i], 1e-12);
      }
    }
  }
}

void ExpectSpectrum(const Spectrum& spectrum, const Dense& matrix, std::size_t rank) {
  std::vector<double> values = SingularValues(matrix);
  values.resize(rank);
  ASSERT_EQ(spectrum.singular_values.size(), rank);
  double sum = 0, squares = 0, fourths = 0, entropy = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    EXPECT_NEAR(spectrum.singular_values[i], values[i], 1e-7 * values[0]) << i;
    sum += values[i];
    squares += values[i] * values[i];
    fourths += std::pow(values[i], 4);
  }
  for (const double value : values)
    if (value > 0) entropy -= value / sum * std::log(value / sum);
  EXPECT_NEAR(spectrum.norm, Norm(matrix), 1e-9 * Norm(matrix));
  EXPECT_NEAR(spectrum.effective_rank, std::exp(entropy), 1e-5);
  EXPECT_NEAR(spectrum.participation, squares * squares / fourths, 1e-9);
}

TEST_P(Circuits, SpectraAreThoseOfTheDenseMatrices) {
  const TinyModel tiny = MakeTiny(GetParam());
  const Model model = testing::LoadTiny(tiny);
  const auto circuits = LayerCircuits::Create(model, 1);
  const auto rank = static_cast<std::size_t>(tiny.head_dim);
  for (std::int64_t head = 0; head < tiny.num_heads; ++head) {
    const DenseHead dense(tiny, 1, head);
    ExpectSpectrum(circuits->QkSpectrum(head), dense.Qk(), rank);
    ExpectSpectrum(circuits->OvSpectrum(head), dense.Ov(), rank);
  }
}

double Score(const Dense& a, const Dense& b) {
  return Norm(Multiply(a, b)) / (Norm(a) * Norm(b)) - 1 / std::sqrt(static_cast<double>(b.rows));
}

TEST_P(Circuits, CompositionIsTheNormOfTheDenseProduct) {
  const TinyModel tiny = MakeTiny(GetParam());
  const Model model = testing::LoadTiny(tiny);
  const auto earlier = LayerCircuits::Create(model, 0), later = LayerCircuits::Create(model, 2);
  for (std::int64_t from = 0; from < tiny.num_heads; ++from)
    for (std::int64_t to = 0; to < tiny.num_heads; ++to) {
      const CompositionScores scores = earlier->Compose(from, *later, to);
      const Dense written = DenseHead(tiny, 0, from).Ov();
      const Dense qk = DenseHead(tiny, 2, to).Qk(), ov = DenseHead(tiny, 2, to).Ov();
      EXPECT_NEAR(scores.query, Score(Transpose(qk), written), 1e-9);
      EXPECT_NEAR(scores.key, Score(qk, written), 1e-9);
      EXPECT_NEAR(scores.value, Score(ov, written), 1e-9);
    }
  EXPECT_DOUBLE_EQ(later->baseline(), 1 / std::sqrt(static_cast<double>(tiny.d_model)));
}

INSTANTIATE_TEST_SUITE_P(Families, Circuits, ::testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                         [](const auto& test) { return test.param; });

TEST(Circuits, BaselineIsTheMeanOverRandomRotations) {
  // The mean square of |A U B| / (|A| |B|) over orthogonal U is 1 / d: here over all signed
  // permutations of two dimensions, a group whose mean is that over all rotations.
  Dense a(2, 2), b(2, 2);
  a.values = {3, -1, 0.5, 2};
  b.values = {1, 4, -2, 0.25};
  double sum = 0;
  for (int i = 0; i < 8; ++i) {
    Dense u(2, 2);
    u.at(0, static_cast<std::size_t>(i & 1)) = (i & 2) != 0 ? 1 : -1;
    u.at(1, static_cast<std::size_t>(1 - (i & 1))) = (i & 4) != 0 ? 1 : -1;
    sum += std::pow(Norm(Multiply(Multiply(a, u), b)) / (Norm(a) * Norm(b)), 2) / 8;
  }
  EXPECT_NEAR(sum, 1.0 / 2, 1e-12);
}

TEST(Circuits, ADeadHeadHasNoDirectionsAndNoLinks) {
  TinyModel tiny = MakeTiny("llama");
  const auto D = static_cast<std::size_t>(tiny.head_dim),
             d = static_cast<std::size_t>(tiny.d_model);
  std::vector<float>& query = tiny.tensors["blk.1.attn_q.weight"];
  std::fill_n(query.begin() + static_cast<std::ptrdiff_t>(2 * D * d), D * d, 0.0F);
  std::vector<float>& value = tiny.tensors["blk.1.attn_v.weight"];
  for (std::size_t i = 1; i < D; ++i)  // all rows of KV head 1 alike: rank 1
    std::copy_n(value.begin() + static_cast<std::ptrdiff_t>(D * d), d,
                value.begin() + static_cast<std::ptrdiff_t>((D + i) * d));
  const Model model = testing::LoadTiny(tiny);
  const auto earlier = LayerCircuits::Create(model, 0), later = LayerCircuits::Create(model, 1);
  EXPECT_EQ(later->QkSpectrum(2).norm, 0);
  EXPECT_EQ(later->QkSpectrum(2).effective_rank, 0);
  EXPECT_EQ(earlier->Compose(0, *later, 2).key, 0);
  EXPECT_EQ(earlier->Compose(0, *later, 2).query, 0);
  EXPECT_NEAR(later->OvSpectrum(2).participation, 1, 1e-9);
  EXPECT_NEAR(later->OvSpectrum(2).effective_rank, 1, 1e-5);
  EXPECT_GT(later->OvSpectrum(0).effective_rank, 2);
}

TEST(DescribeCircuits, LinksAreRankedAmongAllHeadsBefore) {
  const TinyModel tiny = MakeTiny("llama");
  const Model model = testing::LoadTiny(tiny);
  CircuitOptions options;
  options.heads = {{2, 1}, {0, 3}};
  options.from = {{0, 2}, {1, 1}, {2, 0}};
  options.to = {{2, 3}, {1, 0}};
  std::int64_t calls = 0;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(total, 3);
  };
  options.threads = 1;
  const auto one = DescribeCircuits(model, options);
  calls = 0;
  options.threads = 2;
  const auto two = DescribeCircuits(model, options);
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_EQ(one->heads.size(), 2U);
  EXPECT_EQ(one->heads[0].id, (HeadId{0, 3}));
  EXPECT_EQ(one->heads[0].kv_head, 1);
  EXPECT_EQ(one->heads[1].id, (HeadId{2, 1}));
  ASSERT_EQ(one->links.size(), 3U);  // 0.2 to 1.0, 0.2 and 1.1 to 2.3
  std::vector<LayerCircuits> layers;
  for (std::int64_t i = 0; i < 3; ++i) layers.push_back(*LayerCircuits::Create(model, i));
  for (std::size_t i = 0; i < 3; ++i) {
    const HeadLink& link = one->links[i];
    EXPECT_EQ(link.to, i == 0 ? (HeadId{1, 0}) : (HeadId{2, 3}));
    EXPECT_EQ(link.num_from, link.to.layer * tiny.num_heads);
    const auto score = [&](HeadId from) {
      return layers[static_cast<std::size_t>(from.layer)]
          .Compose(from.head, layers[static_cast<std::size_t>(link.to.layer)], link.to.head)
          .key;
    };
    EXPECT_NEAR(link.scores.key, score(link.from), 1e-12);
    std::int64_t better = 0;
    for (std::int64_t layer = 0; layer < link.to.layer; ++layer)
      for (std::int64_t head = 0; head < tiny.num_heads; ++head)
        better += score({layer, head}) > link.scores.key + 1e-12;
    EXPECT_EQ(link.rank, better + 1);
    EXPECT_EQ(two->links[i].from, link.from);
    EXPECT_EQ(two->links[i].scores.key, link.scores.key);  // bits
    EXPECT_EQ(two->links[i].scores.value, link.scores.value);
  }
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(one->heads[i].ov.singular_values, two->heads[i].ov.singular_values);
}

TEST(DescribeCircuits, WrongHeadsAreErrorsWithTheValidRange) {
  const Model model = testing::LoadTiny(MakeTiny("llama"));
  const auto error = [&](const CircuitOptions& options) {
    const auto result = DescribeCircuits(model, options);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return result.status().message();
  };
  CircuitOptions options;
  options.heads = {{3, 0}};
  EXPECT_THAT(error(options), HasSubstr("layer = 3; expected 0..2"));
  options.heads = {{0, 4}};
  EXPECT_THAT(error(options), HasSubstr("head = 4 of layer 0; expected 0..3"));
  options.heads = {};
  options.to = {{-1, 0}};
  EXPECT_THAT(error(options), HasSubstr("layer = -1; expected 0..2"));
  options.to = {};
  options.from = {{0, -1}};
  EXPECT_THAT(error(options), HasSubstr("head = -1 of layer 0; expected 0..3"));
  options.from = {};
  options.threads = -1;
  EXPECT_THAT(error(options), HasSubstr("threads = -1; expected 0..1024"));
  const auto layer = LayerCircuits::Create(model, 7);
  EXPECT_THAT(layer.status().message(), HasSubstr("layer = 7; expected 0..2"));
  const std::atomic<bool> cancel = true;
  options = {};
  options.cancel = &cancel;
  EXPECT_EQ(DescribeCircuits(model, options).status().code(), StatusCode::kIoError);
}

// ---------------------------------------------------------------------------------------------
// Terms of the layer's output
// ---------------------------------------------------------------------------------------------

std::vector<TokenId> Ids(int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((35 + static_cast<unsigned>(i) * 104729U) % 259U));
  return ids;
}

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
  const std::vector<TokenId> ids = Ids(29);
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
  const auto with = MeasureTerms(testing::LoadTiny(tiny), Ids(20), options);
  const auto without = MeasureTerms(plain, Ids(20), options);
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
  const auto a = MeasureTerms(model, Ids(40), one), b = MeasureTerms(model, Ids(40), two);
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
  EXPECT_THAT(error(Ids(65)), HasSubstr("tokens = 65; expected 1..64"));
  EXPECT_THAT(error({1, 259}), HasSubstr("id = 259; expected 0..258"));
  EXPECT_THAT(error({-1}), HasSubstr("id = -1; expected 0..258"));
  TermOptions options;
  options.threads = 1025;
  EXPECT_THAT(error(Ids(2), options), HasSubstr("threads = 1025; expected 0..1024"));
}

}  // namespace
}  // namespace manyhead
