#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead {

/// What an AttentionPlan is made for. Lengths are upper bounds; each Run states its own.
struct AttentionParams {
  std::int64_t num_heads = 0;     ///< H, query heads; a multiple of num_kv_heads
  std::int64_t num_kv_heads = 0;  ///< K, key/value heads: H = MHA, 1 = MQA, between = GQA
  std::int64_t head_dim = 0;      ///< D, elements of a query or key head, 1..1024
  std::int64_t head_dim_v = 0;    ///< elements of a value head, 1..1024; 0 selects head_dim
  std::int64_t max_q_len = 0;   ///< most query tokens of one Run, over all its requests, at least 1
  std::int64_t max_kv_len = 0;  ///< most key/value tokens of one request, at least 1
  float softmax_scale = 0;      ///< factor on every logit, finite; 0 selects 1/sqrt(head_dim)
  bool causal = true;           ///< query i sees key j iff j <= i + (kv_len - q_len)
  std::int64_t window = 0;      ///< W: sees j in [i - W + 1, i] only (absolute positions); 0 = all
  int threads = 0;              ///< 0 selects DefaultThreads()
  std::optional<Isa> isa;       ///< default SelectIsa()
};

/// out[t,h] = sum_s softmax_s(softmax_scale * dot(q[t,h], k[s,h/G])) * v[s,h/G], G = H/K.
///
/// Create validates and may fail; Run cannot fail on a valid plan's shapes.
///
/// Shapes   q [T, H, D], out [T, H, Dv], lse [T, H]; k [S, K, D], v [S, K, Dv]: row-major f32, last
///          dimension dense. lse is the natural log of each softmax denominator; null to skip it.
/// Rows     a row without a visible key gives zeros and lse = -inf, never NaN; NaN in a key or
/// value
///          that no query may see changes nothing.
/// Aliasing out and lse overlap no input.
/// Errors   kInvalidArgument, naming the parameter and both values, before anything is written.
/// Create
///          throws bad_alloc when its scratch memory cannot be had.
/// Threads  a plan owns scratch memory: one Run at a time per plan. Run allocates nothing. Results
/// are
///          bitwise equal for every thread count on one instruction set.
/// Source   grouped heads arXiv:2305.13245; one-pass softmax arXiv:1805.02867; tiling over keys
///          arXiv:2205.14135.
class AttentionPlan {
 public:
  static Result<AttentionPlan> Create(const AttentionParams& params);
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  /// Over one layer of a paged cache, for a ragged batch of requests: request b has the queries
  /// [qo_indptr[b], qo_indptr[b + 1]) of q, which are the last tokens of sequences[b]. qo_indptr
  /// holds sequences.size() + 1 prefix sums, the first 0; null stands for one query per request
  /// (decode).
  Status Run(const KvCache& cache, std::int64_t layer, std::span<const SequenceId> sequences,
             const std::int64_t* qo_indptr, const float* q, float* out,
             float* lse = nullptr) noexcept;

  /// Over plain tensors of `kv_len` tokens.
  Status Run(std::int64_t q_len, std::int64_t kv_len, const float* q, const float* k,
             const float* v, float* out, float* lse = nullptr) noexcept;

  const AttentionParams& params() const noexcept;
  std::int64_t scratch_bytes() const noexcept;

  /// For other rooms of this library only: incomplete outside it.
  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit AttentionPlan(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace manyhead
