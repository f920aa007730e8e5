#include "manyhead/circuits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/heads/circuits/circuits_impl.h"
#include "runtime/linear/linear.h"
#include "runtime/model/weights.h"

namespace manyhead {
namespace {

using Impl = LayerCircuits::Impl;
using Eigen::MatrixXd;

/// Reads rows of a weight matrix as columns, [cols, rows], each element of a column times `norm`.
MatrixXd ReadColumns(const WeightView& weight, std::int64_t first, std::int64_t count,
                     const std::vector<float>& norm) {
  std::vector<float> row(static_cast<std::size_t>(weight.cols));
  MatrixXd columns(weight.cols, count);
  for (std::int64_t i = 0; i < count; ++i) {
    DequantizeRow(weight, Isa::kScalar, first + i, row.data());
    for (std::int64_t j = 0; j < weight.cols; ++j) {
      const auto at = static_cast<std::size_t>(j);
      columns(j, i) = static_cast<double>(row[at]) * static_cast<double>(norm[at]);
    }
  }
  return columns;
}

/// Scales column i by the i-th weight of a query or key norm, if there is one.
void ScaleColumns(const std::vector<float>& norm, MatrixXd& columns) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(norm.size()); ++i)
    columns.col(i) *= static_cast<double>(norm[static_cast<std::size_t>(i)]);
}

/// Reads columns of the output projection, row i times the i-th weight of the norm after attention.
std::vector<MatrixXd> ReadOutput(const WeightView& weight, std::int64_t heads,
                                 const std::vector<float>& post_norm) {
  const std::int64_t D = weight.cols / heads;
  std::vector<MatrixXd> blocks(static_cast<std::size_t>(heads), MatrixXd(weight.rows, D));
  std::vector<float> row(static_cast<std::size_t>(weight.cols));
  for (std::int64_t i = 0; i < weight.rows; ++i) {
    DequantizeRow(weight, Isa::kScalar, i, row.data());
    const double scale =
        post_norm.empty() ? 1 : static_cast<double>(post_norm[static_cast<std::size_t>(i)]);
    for (std::int64_t j = 0; j < weight.cols; ++j)
      blocks[static_cast<std::size_t>(j / D)](i, j % D) =
          scale * static_cast<double>(row[static_cast<std::size_t>(j)]);
  }
  return blocks;
}

Impl::Factor MakeFactor(MatrixXd matrix) {
  Impl::Factor factor{std::move(matrix), {}};
  factor.gram.noalias() = factor.matrix.transpose() * factor.matrix;
  return factor;
}

/// Returns the squared norm of left * middle * right^T.
double SquaredNorm(const MatrixXd& left_gram, const MatrixXd& middle, const MatrixXd& right_gram) {
  return ((left_gram * middle).array() * (middle * right_gram).array()).sum();
}

double SquaredNorm(const Impl::Factor& left, const Impl::Factor& right) {
  return (left.gram.array() * right.gram.array()).sum();
}

std::vector<double> Dense(const MatrixXd& matrix) {
  std::vector<double> values(static_cast<std::size_t>(matrix.size()));
  Eigen::Map<Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
      values.data(), matrix.rows(), matrix.cols()) = matrix;
  return values;
}

LowRankMatrix Product(const Impl::Factor& left, const Impl::Factor& right) {
  return {left.matrix.rows(), right.matrix.rows(), left.matrix.cols(), Dense(left.matrix),
          Dense(right.matrix)};
}

}  // namespace

/// Computes the spectrum of left * right^T. If left * left' is the Gram matrix of the one factor,
/// the squares of the singular values are the eigenvalues of left' * (Gram matrix of the other) *
/// left. Small singular values have an error of 1e-8 of the largest.
Spectrum SpectrumOf(const Impl::Factor& left, const Impl::Factor& right) {
  const Eigen::LDLT<MatrixXd> parts(left.gram);
  MatrixXd root = parts.matrixL();
  root = parts.transpositionsP().transpose() * root;
  root *= parts.vectorD().cwiseMax(0).cwiseSqrt().asDiagonal();
  MatrixXd squares(root.cols(), root.cols());
  squares.noalias() = root.transpose() * (right.gram * root);
  const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(squares, Eigen::EigenvaluesOnly);
  Spectrum spectrum;
  double sum = 0, square_sum = 0, fourth_sum = 0, entropy = 0;
  const std::int64_t rank = std::min(left.matrix.rows(), left.matrix.cols());
  for (std::int64_t i = 0; i < rank; ++i) {
    const double square = std::max(0.0, solver.eigenvalues()(root.cols() - 1 - i));
    spectrum.singular_values.push_back(std::sqrt(square));
    sum += spectrum.singular_values.back();
    square_sum += square;
    fourth_sum += square * square;
  }
  if (sum == 0) return spectrum;
  for (const double value : spectrum.singular_values)
    if (value > 0) entropy -= value / sum * std::log(value / sum);
  spectrum.norm = std::sqrt(square_sum);
  spectrum.effective_rank = std::exp(entropy);
  spectrum.participation = square_sum * square_sum / fourth_sum;
  return spectrum;
}

HeadReader HeadReader::Of(const Impl& layer, std::int64_t head) {
  return {{layer.layer, head},
          layer.Query(head),
          layer.Key(head),
          layer.Value(head),
          layer.Output(head)};
}

CompositionScores Compose(const Impl& earlier, std::int64_t from, const HeadReader& reader) {
  const Impl::Factor &output = earlier.Output(from), &value = earlier.Value(from);
  const double baseline = 1 / std::sqrt(static_cast<double>(output.matrix.rows()));
  const double written = SquaredNorm(output, value);
  const auto score = [&](const Impl::Factor& reads, const Impl::Factor& other) {
    const double both = written * SquaredNorm(other, reads);
    if (!(both > 0)) return 0.0;
    const MatrixXd middle = reads.matrix.transpose() * output.matrix;
    const double passed = std::max(0.0, SquaredNorm(other.gram, middle, value.gram));
    return std::sqrt(passed / both) - baseline;
  };
  return {score(reader.query, reader.key), score(reader.key, reader.query),
          score(reader.value, reader.output)};
}

Result<std::unique_ptr<Impl>> LoadLayerCircuits(const Model& model, std::int64_t layer) {
  const ModelConfig& config = model.config();
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  if (layer < 0 || layer >= layers)
    return Status(StatusCode::kInvalidArgument, "LayerCircuits: layer = " + std::to_string(layer) +
                                                    "; expected 0.." + std::to_string(layers - 1));
  const LayerConfig& shape = config.layers[static_cast<std::size_t>(layer)];
  const LayerWeights& w = model.impl().weights.layers[static_cast<std::size_t>(layer)];
  auto impl = std::make_unique<Impl>();
  impl->layer = layer;
  impl->num_heads = shape.num_heads;
  impl->num_kv_heads = shape.num_kv_heads;
  const std::int64_t D = shape.head_dim, Dv = shape.head_dim_v;
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    MatrixXd query = ReadColumns(w.query, h * D, D, w.attention_norm.scale);
    ScaleColumns(w.query_norm.scale, query);
    impl->query.push_back(MakeFactor(std::move(query)));
  }
  for (std::int64_t h = 0; h < shape.num_kv_heads; ++h) {
    MatrixXd key = ReadColumns(w.key, h * D, D, w.attention_norm.scale);
    ScaleColumns(w.key_norm.scale, key);
    impl->key.push_back(MakeFactor(std::move(key)));
    impl->value.push_back(MakeFactor(ReadColumns(w.value, h * Dv, Dv, w.attention_norm.scale)));
  }
  for (MatrixXd& block : ReadOutput(w.output, shape.num_heads, w.post_attention_norm.scale))
    impl->output.push_back(MakeFactor(std::move(block)));
  return impl;
}

LayerCircuits::LayerCircuits(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
LayerCircuits::LayerCircuits(LayerCircuits&&) noexcept = default;
LayerCircuits& LayerCircuits::operator=(LayerCircuits&&) noexcept = default;
LayerCircuits::~LayerCircuits() = default;

Result<LayerCircuits> LayerCircuits::Create(const Model& model, std::int64_t layer) {
  Result<std::unique_ptr<Impl>> impl = LoadLayerCircuits(model, layer);
  if (!impl.ok()) return impl.status();
  return LayerCircuits(*std::move(impl));
}

std::int64_t LayerCircuits::layer() const noexcept { return impl_->layer; }
std::int64_t LayerCircuits::num_heads() const noexcept { return impl_->num_heads; }
std::int64_t LayerCircuits::d_model() const noexcept { return impl_->query.front().matrix.rows(); }

LowRankMatrix LayerCircuits::Qk(std::int64_t head) const {
  return Product(impl_->Query(head), impl_->Key(head));
}

LowRankMatrix LayerCircuits::Ov(std::int64_t head) const {
  return Product(impl_->Output(head), impl_->Value(head));
}

Spectrum LayerCircuits::QkSpectrum(std::int64_t head) const {
  return SpectrumOf(impl_->Query(head), impl_->Key(head));
}

Spectrum LayerCircuits::OvSpectrum(std::int64_t head) const {
  return SpectrumOf(impl_->Output(head), impl_->Value(head));
}

CompositionScores LayerCircuits::Compose(std::int64_t from, const LayerCircuits& later,
                                         std::int64_t to) const {
  return manyhead::Compose(*impl_, from, HeadReader::Of(*later.impl_, to));
}

double LayerCircuits::baseline() const noexcept {
  return 1 / std::sqrt(static_cast<double>(d_model()));
}

}  // namespace manyhead
