#pragma once

#include <cstdint>
#include <span>

#include "kernels/vector_kernels.h"
#include "manyhead/kv_cache.h"
#include "manyhead/rope.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/cache/token_rows.h"
#include "runtime/layer/norm.h"
#include "runtime/linear/linear.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Applies to `count` neighbouring heads [head_dim] their norm, to each by itself or to all as one
/// row, then their rotation by the angles of one position. Without a rope nothing is rotated.
struct HeadRotation {
  Norm norm{};
  const Rope* rope = nullptr;
  const kernels::VectorKernels* kernels = nullptr;
  bool whole = false;  ///< the norm reads all heads as one row

  void Run(const float* cosine, const float* sine, std::int64_t count, std::int64_t head_dim,
           float* heads) const noexcept;
};

/// Attention with its projections, as a layer of a model or alone: a view of weights, of buffers
/// for activations and of a plan that has been prepared for the step's sequences. Its parts run in
/// order; every thread of a region calls each of them, and each ends with a barrier. Other
/// operations on the heads take place between Attend and ProjectOutput.
struct AttentionBlock {
  std::span<const LinearOutput> inputs{};  ///< products for query, key and value
  const WeightView* output = nullptr;      ///< [d, H * Dv]
  const float* output_bias = nullptr;      ///< [d] or null
  HeadRotation query_rotation{}, key_rotation{};
  AttentionPlan::Impl* plan = nullptr;  ///< also gives the number and the size of the heads
  float* query = nullptr;               ///< [M, H * D]
  float* key = nullptr;                 ///< [M, K * D]
  float* value = nullptr;               ///< [M, K * Dv]
  float* attended = nullptr;            ///< [M, H * Dv]
  float* lse = nullptr;                 ///< [M, H] or null
  const float* cosine = nullptr;        ///< [M, rotary_dim / 2] of each row's position; with a rope
  const float* sine = nullptr;          ///< [M, rotary_dim / 2] of each row's position; with a rope

  /// Computes queries, keys and values of x [M, d], row stride `x_stride`.
  void ProjectInputs(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                     const float* x, std::int64_t x_stride) const noexcept;
  void Rotate(Worker& worker, std::int64_t rows) const noexcept;
  void Write(Worker& worker, KvCache& cache, std::int64_t layer,
             std::span<const KvRows> tokens) const noexcept;
  void Attend(Worker& worker, std::int64_t layer) const noexcept;
  /// Writes the projected output to y [M, d], dense.
  void ProjectOutput(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                     float* y) const noexcept;
};

}  // namespace manyhead
