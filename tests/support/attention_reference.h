#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "manyhead/attention.h"
#include "tests/support/kv_reference.h"

/// Attention as the formula states it, in double precision and two passes, for tests to compare
/// with. It knows no tiles, no pages and no vectors, and calls nothing of the library.

namespace manyhead::testing {

/// One request.
struct AttentionCase {
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  double scale = 1;
  bool causal = true;
  std::int64_t window = 0;
  std::optional<std::int64_t> window_right = std::nullopt;
  std::int64_t num_sink_tokens = 0;
  double logit_softcap = 0;
  std::optional<std::int64_t> query_start = std::nullopt;  ///< unset: kv_len - q_len
  std::vector<float> alibi_slopes = {};                    ///< [H] or empty
  std::vector<float> sink_logits = {};                     ///< [H] or empty
  std::vector<float> bias_HTS = {};                        ///< or empty
  std::vector<std::uint8_t> mask_HTS = {};                 ///< or empty; 0 hides
  /// Bound of |scale * x| + |minimum| over the largest |key| or |value| of a row: 3 where int4
  /// stores them, 1 elsewhere.
  double k_terms = 1;
  double v_terms = 1;
};

struct AttentionResult {
  std::vector<double> out_THD;
  std::vector<double> lse_TH;
  /// Error bounds of f32 arithmetic in a row's outputs and its lse, from the row's own numbers.
  ///
  /// With u = 2^-24, a logit x of a key consists of D rounded additions of terms that sum up to X
  /// in magnitude, whose errors are as likely up as down: (sqrt(D) + 4) u X. The soft-cap costs 8 u
  /// |x|, bias and ALiBi u for each of their roundings. If d_s is that error, the row's output
  /// moves by sum_s p_s |v_s - out| d_s <= 2 v_max sum_s p_s d_s and its lse by sum_s p_s d_s. S
  /// additions and the exponential (2e-7) add (sqrt(S) + 10) u.
  std::vector<double> out_bound_TH;
  std::vector<double> lse_bound_TH;
};

/// Whether query t of head h attends to key s.
bool Sees(const AttentionCase& shape, std::int64_t h, std::int64_t t, std::int64_t s);

AttentionResult ReferenceAttention(const AttentionCase& shape, const std::vector<float>& q_THD,
                                   const std::vector<float>& k_SKD,
                                   const std::vector<float>& v_SKD);

/// A stage of the logits [H, T, S], as AttentionPlan::Weights documents them.
std::vector<double> ReferenceWeights(const AttentionCase& shape, LogitStage stage,
                                     const std::vector<float>& q_THD,
                                     const std::vector<float>& k_SKD);

/// Returns the largest error of f32 attention for |q| <= q_max, |k| <= k_max, |v| <= v_max,
/// without bias, ALiBi and soft-cap.
///
/// A logit is D rounded additions of terms below q_max k_max, whose errors are as likely up as
/// down: e = eps * (sqrt(D) + 3) * scale * D q_max k_max. Logits that are off by e change each
/// probability by at most 2e relative, so the convex combination by 2 e v_max; S additions and the
/// exponential (2e-7) add (sqrt(S) + 8) eps v_max.
double AttentionTolerance(const AttentionCase& shape, double q_max, double k_max, double v_max);

/// `n` numbers in [-1, 1), the same on every platform.
std::vector<float> RandomTensor(std::int64_t n, std::uint32_t seed);

}  // namespace manyhead::testing
