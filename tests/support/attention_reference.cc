#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace manyhead::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRoundoff = 0x1p-24;

std::size_t IndexHTS(const AttentionCase& shape, std::int64_t h, std::int64_t t, std::int64_t s) {
  return static_cast<std::size_t>((h * shape.q_len + t) * shape.kv_len + s);
}

std::int64_t Position(const AttentionCase& shape, std::int64_t t) {
  return shape.query_start.value_or(shape.kv_len - shape.q_len) + t;
}

/// A logit at each stage, and how far f32 may be off in the last.
struct Logit {
  double score = 0, capped = 0, biased = 0, error = 0;
};

Logit LogitOf(const AttentionCase& shape, std::int64_t h, std::int64_t t, std::int64_t s,
              const std::vector<float>& q_THD, const std::vector<float>& k_SKD) {
  const std::int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
  const float* q = &q_THD[(t * H + h) * D];
  const float* k = &k_SKD[(s * K + h / (H / K)) * D];
  double dot = 0, q_sum = 0, k_max = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    dot += double{q[d]} * double{k[d]};
    q_sum += std::fabs(q[d]);
    k_max = std::max(k_max, std::fabs(double{k[d]}));
  }
  Logit x;
  x.score = dot * shape.scale;
  x.capped = shape.logit_softcap > 0
                 ? shape.logit_softcap * std::tanh(x.score / shape.logit_softcap)
                 : x.score;
  x.biased = x.capped;
  const double terms = std::fabs(shape.scale) * q_sum * k_max * shape.k_terms;
  x.error = (std::sqrt(static_cast<double>(D)) + 4) * terms;
  if (shape.logit_softcap > 0) x.error += 8 * std::fabs(x.score);
  if (!shape.bias_HTS.empty()) {
    const double bias = shape.bias_HTS[IndexHTS(shape, h, t, s)];
    x.biased += bias;
    x.error += std::fabs(x.biased);
  }
  if (!shape.alibi_slopes.empty()) {
    const double distance = static_cast<double>(std::abs(Position(shape, t) - s));
    const double alibi = double{shape.alibi_slopes[h]} * distance;
    x.biased -= alibi;
    x.error += 2 * std::fabs(alibi) + std::fabs(x.biased);
  }
  x.error *= kRoundoff;
  return x;
}

/// Softmax of one row over the keys it sees, the sink logit included.
struct Row {
  std::vector<std::int64_t> keys;
  std::vector<double> probs;  ///< probabilities of `keys`
  double lse = -kInfinity;
  double logit_error = 0;
};

Row RowOf(const AttentionCase& shape, std::int64_t h, std::int64_t t,
          const std::vector<float>& q_THD, const std::vector<float>& k_SKD) {
  Row row;
  const double sink = shape.sink_logits.empty() ? -kInfinity : double{shape.sink_logits[h]};
  double max = sink;
  std::vector<double> errors;
  for (std::int64_t s = 0; s < shape.kv_len; ++s) {
    if (!Sees(shape, h, t, s)) continue;
    const Logit x = LogitOf(shape, h, t, s, q_THD, k_SKD);
    row.keys.push_back(s);
    row.probs.push_back(x.biased);
    errors.push_back(x.error);
    max = std::max(max, x.biased);
  }
  if (max == -kInfinity) return row;
  double sum = std::exp(sink - max);
  for (double& x : row.probs) sum += x = std::exp(x - max);
  for (std::size_t i = 0; i < row.probs.size(); ++i) {
    row.probs[i] /= sum;
    row.logit_error += row.probs[i] * errors[i];
  }
  row.lse = max + std::log(sum);
  return row;
}

}  // namespace

bool Sees(const AttentionCase& shape, std::int64_t h, std::int64_t t, std::int64_t s) {
  const std::int64_t distance = Position(shape, t) - s;  // to the left
  std::optional<std::int64_t> right = shape.window_right;
  if (!right.has_value() && (shape.causal || shape.window > 0)) right = 0;
  if (shape.causal) right = 0;
  if (right.has_value() && -distance > *right) return false;
  if (shape.window > 0 && distance >= shape.window && s >= shape.num_sink_tokens) return false;
  const std::size_t index = IndexHTS(shape, h, t, s);
  if (!shape.mask_HTS.empty() && shape.mask_HTS[index] == 0) return false;
  return shape.bias_HTS.empty() || double{shape.bias_HTS[index]} != -kInfinity;
}

AttentionResult ReferenceAttention(const AttentionCase& shape, const std::vector<float>& q_THD,
                                   const std::vector<float>& k_SKD,
                                   const std::vector<float>& v_SKD) {
  const std::int64_t H = shape.num_heads, K = shape.num_kv_heads, Dv = shape.head_dim_v;
  AttentionResult result;
  result.out_THD.assign(static_cast<std::size_t>(shape.q_len * H * Dv), 0.0);
  for (std::int64_t t = 0; t < shape.q_len; ++t) {
    for (std::int64_t h = 0; h < H; ++h) {
      const Row row = RowOf(shape, h, t, q_THD, k_SKD);
      double* out = &result.out_THD[(t * H + h) * Dv];
      double v_max = 0;
      for (std::size_t i = 0; i < row.keys.size(); ++i) {
        const float* v = &v_SKD[(row.keys[i] * K + h / (H / K)) * Dv];
        for (std::int64_t d = 0; d < Dv; ++d) {
          out[d] += row.probs[i] * double{v[d]};
          v_max = std::max(v_max, std::fabs(double{v[d]}));
        }
      }
      const double sums = (std::sqrt(static_cast<double>(row.keys.size())) + 10) * kRoundoff;
      result.lse_TH.push_back(row.lse);
      result.out_bound_TH.push_back(v_max * shape.v_terms * (2 * row.logit_error + sums));
      result.lse_bound_TH.push_back(row.logit_error + sums + 2 * kRoundoff * std::fabs(row.lse));
    }
  }
  return result;
}

std::vector<double> ReferenceWeights(const AttentionCase& shape, LogitStage stage,
                                     const std::vector<float>& q_THD,
                                     const std::vector<float>& k_SKD) {
  std::vector<double> weights;
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    for (std::int64_t t = 0; t < shape.q_len; ++t) {
      std::vector<double> row(static_cast<std::size_t>(shape.kv_len),
                              stage == LogitStage::kProbs ? 0 : -kInfinity);
      if (stage == LogitStage::kProbs) {
        const Row probs = RowOf(shape, h, t, q_THD, k_SKD);
        for (std::size_t i = 0; i < probs.keys.size(); ++i) row[probs.keys[i]] = probs.probs[i];
      } else {
        for (std::int64_t s = 0; s < shape.kv_len; ++s) {
          const Logit x = LogitOf(shape, h, t, s, q_THD, k_SKD);
          if (stage == LogitStage::kScores) row[s] = x.score;
          if (stage == LogitStage::kCapped) row[s] = x.capped;
          if (stage == LogitStage::kBiased && Sees(shape, h, t, s)) row[s] = x.biased;
        }
      }
      weights.insert(weights.end(), row.begin(), row.end());
    }
  }
  return weights;
}

double AttentionTolerance(const AttentionCase& shape, double q_max, double k_max, double v_max) {
  const double eps = std::ldexp(1.0, -24), D = static_cast<double>(shape.head_dim);
  const double e = eps * (std::sqrt(D) + 3) * std::fabs(shape.scale) * D * q_max * k_max;
  return v_max * (2 * e + eps * (std::sqrt(static_cast<double>(shape.kv_len)) + 8));
}

std::vector<float> RandomTensor(std::int64_t n, std::uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = static_cast<float>(bits() >> 8) * 0x1p-23F - 1.0F;
  return x;
}

}  // namespace manyhead::testing
