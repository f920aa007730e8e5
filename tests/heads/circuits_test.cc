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
#include "tests/heads/dense_head.h"

/// Circuits against dense matrices.

namespace manyhead {
namespace {

using testing::Dense;
using testing::DenseHead;
using testing::Full;
using ::testing::HasSubstr;
using testing::MakeTiny;
using testing::Multiply;
using testing::Norm;
using testing::TinyModel;
using testing::Transpose;

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

}  // namespace
}  // namespace manyhead
