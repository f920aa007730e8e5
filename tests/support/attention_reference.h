#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/types.h"

/// Attention as the formula states it, in double precision and two passes, for tests to compare
/// with. It knows no tiles, no pages and no vectors, and calls nothing of the library.

namespace manyhead::testing {

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
};

struct AttentionResult {
  std::vector<double> out_THD;
  std::vector<double> lse_TH;
};

AttentionResult ReferenceAttention(const AttentionCase& shape, const std::vector<float>& q_THD,
                                   const std::vector<float>& k_SKD,
                                   const std::vector<float>& v_SKD);

/// How far f32 attention may be from the reference for |q| <= q_max, |k| <= k_max, |v| <= v_max.
///
/// A logit is D rounded additions of terms below q_max k_max, whose errors are as likely up as
/// down: e = eps * (sqrt(D) + 3) * scale * D q_max k_max. Logits that are off by e change each
/// probability by at most 2e relative, so the convex combination by 2 e v_max; S additions and the
/// exponential (2e-7) add (sqrt(S) + 8) eps v_max.
double AttentionTolerance(const AttentionCase& shape, double q_max, double k_max, double v_max);

/// `n` numbers in [-1, 1), the same on every platform.
std::vector<float> RandomTensor(std::int64_t n, std::uint32_t seed);

/// x rounded to what `type` can hold, by arithmetic on doubles.
float RoundTo(KvType type, float x);

/// Pages of one KV head of a cache, filled by a reading of kernels/kv_layout.h of its own. Slots of
/// tokens that are not stored, and lanes beyond head_dim_v, get `poison`.
void PackPages(KvCache& cache, SequenceId sequence, std::int64_t layer, std::int64_t num_kv_heads,
               const std::vector<float>& k_SKD, const std::vector<float>& v_SKD, float poison);

}  // namespace manyhead::testing
