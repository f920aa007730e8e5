#include <algorithm>

#include "tests/layer/layer_testing.h"

/// Plain loops in double, with no code in common with the library: no blocks, no tricks.

namespace manyhead::layer_testing {
namespace {

/// y [n, rows] = x [n, cols] W^T + b.
std::vector<double> Project(const std::vector<double>& x, const std::vector<float>& weight,
                            const std::vector<float>& bias, std::int64_t cols) {
  const std::int64_t rows = static_cast<std::int64_t>(weight.size()) / cols;
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / cols;
  std::vector<double> y(static_cast<std::size_t>(n * rows));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = bias.empty() ? 0 : bias[r];
      for (std::int64_t c = 0; c < cols; ++c)
        sum += x[i * cols + c] * static_cast<double>(weight[r * cols + c]);
      y[i * rows + r] = sum;
    }
  return y;
}

/// Plain and linear rotation, pair by pair.
void Rotate(std::vector<double>& x, std::int64_t heads, std::int64_t head_dim,
            const RopeConfig& rope) {
  const std::int64_t dim = rope.rotary_dim, half = dim / 2;
  for (std::size_t row = 0; row < x.size() / static_cast<std::size_t>(head_dim); ++row) {
    const auto position = static_cast<double>(static_cast<std::int64_t>(row) / heads);
    double* head = x.data() + row * static_cast<std::size_t>(head_dim);
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          position / rope.factor *
          std::pow(rope.base, -2 * static_cast<double>(i) / static_cast<double>(dim));
      double& a = head[rope.interleaved ? 2 * i : i];
      double& b = head[rope.interleaved ? 2 * i + 1 : i + half];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
}

struct Shape {
  std::int64_t d, H, K, D, Dv, T, S;
};

/// Query t of head h over the keys it sees.
void Attend(const AttentionParams& params, const Shape& s, const std::vector<double>& q,
            const std::vector<double>& k, const std::vector<double>& v,
            const std::vector<float>* bias, std::int64_t h, std::int64_t t, double* head) {
  const std::int64_t g = h / (s.H / s.K), position = s.S - s.T + t;
  const double scale = params.softmax_scale != 0 ? static_cast<double>(params.softmax_scale)
                                                 : 1 / std::sqrt(static_cast<double>(s.D));
  std::vector<double> logits(static_cast<std::size_t>(s.S),
                             -std::numeric_limits<double>::infinity());
  double most = params.sink_logits.empty() ? -std::numeric_limits<double>::infinity()
                                           : static_cast<double>(params.sink_logits[h]);
  for (std::int64_t j = 0; j < s.S; ++j) {
    if ((params.causal || params.window > 0) && j > position) continue;
    if (params.window > 0 && j <= position - params.window) continue;
    double dot = 0;
    for (std::int64_t i = 0; i < s.D; ++i)
      dot += q[(t * s.H + h) * s.D + i] * k[(j * s.K + g) * s.D + i];
    const double cap = params.logit_softcap;
    logits[j] = cap > 0 ? cap * std::tanh(dot * scale / cap) : dot * scale;
    if (!params.alibi_slopes.empty())
      logits[j] -=
          static_cast<double>(params.alibi_slopes[h]) * std::abs(static_cast<double>(position - j));
    if (bias != nullptr) logits[j] += (*bias)[(h * s.T + t) * s.S + j];
    most = std::max(most, logits[j]);
  }
  double sum =
      params.sink_logits.empty() ? 0 : std::exp(static_cast<double>(params.sink_logits[h]) - most);
  for (double logit : logits) sum += std::isinf(logit) ? 0 : std::exp(logit - most);
  for (std::int64_t i = 0; i < s.Dv; ++i) {
    double value = 0;
    for (std::int64_t j = 0; j < s.S; ++j)
      if (!std::isinf(logits[j]))
        value += std::exp(logits[j] - most) / sum * v[(j * s.K + g) * s.Dv + i];
    head[i] = value;
  }
}

}  // namespace

Expected Reference(const MultiHeadAttentionParams& params, const Matrices& weights,
                   const std::vector<float>& x, const std::vector<float>* memory,
                   const std::vector<float>* bias) {
  const AttentionParams& a = params.attention;
  const std::int64_t source_dim = memory != nullptr ? params.memory_dim : params.d_model;
  const std::vector<double> wide_x(x.begin(), x.end());
  const std::vector<float>& source = memory != nullptr ? *memory : x;
  const std::vector<double> wide_source(source.begin(), source.end());
  const Shape s = {params.d_model,
                   a.num_heads,
                   a.num_kv_heads,
                   a.head_dim,
                   a.head_dim_v,
                   static_cast<std::int64_t>(x.size()) / params.d_model,
                   static_cast<std::int64_t>(source.size()) / source_dim};
  std::vector<double> q = Project(wide_x, weights.query, weights.query_b, s.d);
  std::vector<double> k = Project(wide_source, weights.key, weights.key_b, source_dim);
  const std::vector<double> v = Project(wide_source, weights.value, weights.value_b, source_dim);
  if (params.rope) {
    Rotate(q, s.H, s.D, *params.rope);
    Rotate(k, s.K, s.D, *params.rope);
  }
  Expected expected;
  expected.heads.resize(static_cast<std::size_t>(s.H * s.T * s.Dv));
  expected.terms.resize(static_cast<std::size_t>(s.H * s.T * s.d));
  expected.out.resize(static_cast<std::size_t>(s.T * s.d));
  expected.sums.resize(expected.out.size());
  for (std::int64_t t = 0; t < s.T; ++t)
    for (std::int64_t r = 0; r < s.d; ++r)
      expected.out[t * s.d + r] = weights.output_b.empty() ? 0 : weights.output_b[r];
  for (std::int64_t h = 0; h < s.H; ++h)
    for (std::int64_t t = 0; t < s.T; ++t) {
      double* head = expected.heads.data() + (h * s.T + t) * s.Dv;
      Attend(a, s, q, k, v, bias, h, t, head);
      for (std::int64_t r = 0; r < s.d; ++r) {
        double term = 0, sum = 0;
        for (std::int64_t i = 0; i < s.Dv; ++i) {
          const double weight = weights.output[(r * s.H + h) * s.Dv + i];
          term += weight * head[i];
          sum += std::abs(weight * head[i]);
        }
        expected.terms[(h * s.T + t) * s.d + r] = term;
        expected.out[t * s.d + r] += term;
        expected.sums[t * s.d + r] += sum;
      }
    }
  return expected;
}

}  // namespace manyhead::layer_testing
