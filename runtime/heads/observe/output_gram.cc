#include "runtime/heads/observe/output_gram.h"

#include <algorithm>
#include <cmath>

#include "runtime/linear/linear.h"
#include "runtime/platform/math.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kMostHeadDim = 1024;

/// Computes columns [H * Dv, d] = W_O [d, H * Dv] transposed, row r of W_O times norm[r], unless
/// `norm` is empty.
void TransposeOutput(Worker& worker, const LayerWeights& w, Isa isa, float* rows,
                     float* columns) noexcept {
  const std::int64_t d = w.output.rows, width = w.output.cols;
  float* mine = rows + worker.index() * kLanes * width;
  worker.ForEach(CeilDiv(d, kLanes), [&](std::int64_t block) {
    const std::int64_t first = block * kLanes, count = std::min(kLanes, d - first);
    for (std::int64_t r = 0; r < count; ++r) {
      DequantizeRow(w.output, isa, first + r, mine + r * width);
      if (w.post_attention_norm.kind == NormKind::kNone) continue;
      const float norm = w.post_attention_norm.scale[static_cast<std::size_t>(first + r)];
      std::for_each_n(mine + r * width, width, [norm](float& x) { x *= norm; });
    }
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t r = 0; r < count; ++r) columns[c * d + first + r] = mine[r * width + c];
    }
  });
}

/// Keeps the upper half of a Gram matrix, doubled off the diagonal: a^T G a = sum_i a_i (G_ii a_i +
/// 2 sum_(j > i) G_ij a_j).
void KeepUpperHalf(float* gram, std::int64_t n, std::int64_t row) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    std::fill_n(gram + i * row, i, 0.0F);
    std::for_each(gram + i * row + i + 1, gram + i * row + n, [](float& x) { x *= 2; });
    std::fill(gram + i * row + n, gram + (i + 1) * row, 0.0F);
  }
}

}  // namespace

Result<OutputGrams> OutputGrams::Create(const Model::Impl& model, Isa isa, int threads) {
  std::int64_t most_columns = 0;
  LinearLimits limits{
      .max_cols = model.config.d_model, .threads = threads, .isa = isa, .math = MathMode::kExact};
  OutputGrams made;
  for (const LayerConfig& layer : model.config.layers) {
    const std::int64_t D = layer.head_dim_v, row = RoundUp(D, kLanes);
    made.layers_.push_back({D, row, AlignedBuffer<float>(layer.num_heads * D * row)});
    limits.max_rows = std::max(limits.max_rows, D);
    most_columns = std::max(most_columns, layer.num_heads * D);
  }
  Result<LinearWorkspace> linear = LinearWorkspace::Create(limits);
  if (!linear.ok()) return linear.status();
  const std::int64_t d = model.config.d_model;
  AlignedBuffer<float> rows(threads * kLanes * most_columns), columns(most_columns * d);
  RunTeam(threads, [&](Worker& worker) {
    for (std::size_t i = 0; i < made.layers_.size(); ++i) {
      Layer& layer = made.layers_[i];
      const std::int64_t D = layer.head_dim_v, H = model.config.layers[i].num_heads;
      TransposeOutput(worker, model.weights.layers[i], isa, rows.data(), columns.data());
      for (std::int64_t h = 0; h < H; ++h) {
        const float* head = columns.data() + h * D * d;
        const WeightView weight{
            .rows = D, .cols = d, .data = reinterpret_cast<const std::byte*>(head)};
        const LinearOutput output[] = {
            {&weight, layer.grams.data() + h * D * layer.row, layer.row, nullptr}};
        RunLinear(worker, *linear, head, d, {.prefill = D}, output);
      }
      worker.ForEach(H, [&](std::int64_t h) {
        KeepUpperHalf(layer.grams.data() + h * D * layer.row, D, layer.row);
      });
    }
  });
  return made;
}

double OutputGrams::Norm(std::int64_t layer_index, std::int64_t head,
                         const float* a) const noexcept {
  const Layer& layer = layers_[static_cast<std::size_t>(layer_index)];
  const std::int64_t D = layer.head_dim_v, row = layer.row;
  const float* gram = layer.grams.data() + head * D * row;
  float padded[kMostHeadDim];
  std::copy_n(a, D, padded);
  std::fill(padded + D, padded + row, 0.0F);
  double square = 0;
  for (std::int64_t i = 0; i < D; ++i, gram += row) {
    float sum[kLanes] = {};
    for (std::int64_t j = i / kLanes * kLanes; j < row; j += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        sum[lane] += gram[j + lane] * padded[j + lane];
    }
    float dot = 0;
    for (const float x : sum) dot += x;
    square += double{padded[i]} * double{dot};
  }
  return std::sqrt(std::max(0.0, square));
}

}  // namespace manyhead
