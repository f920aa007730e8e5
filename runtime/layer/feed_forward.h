#pragma once

#include <cstdint>

#include "kernels/vector_kernels.h"
#include "manyhead/kinds.h"
#include "runtime/linear/linear.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// A feed-forward block: y = down(f(x)) + bias with f(x) = activation(gate(x)) * up(x), or
/// activation(up(x)) in plain blocks. It is a view of weights and of buffers for activations. Its
/// three parts run in order; every thread of a region calls each of them, and each ends with a
/// barrier.
struct FeedForward {
  FeedForwardKind kind = FeedForwardKind::kGated;
  Activation activation = Activation::kSilu;
  const WeightView* gate = nullptr;  ///< [F, d]; null in plain blocks
  const WeightView* up = nullptr;    ///< [F, d]
  const WeightView* down = nullptr;  ///< [d, F]
  const float* gate_bias = nullptr;  ///< [F] or null, as are the others
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  float* gate_rows = nullptr;  ///< [M, F]; not used by plain blocks
  float* up_rows = nullptr;    ///< [M, F]
  const kernels::VectorKernels* kernels = nullptr;

  /// Computes gate(x) and up(x) of dense rows x [M, d].
  void ProjectIn(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                 const float* x) const noexcept;
  void Activate(Worker& worker, const LinearRows& rows) const noexcept;
  /// Writes the result to y [M, d], dense.
  void ProjectOut(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                  float* y) const noexcept;

 private:
  float* activated() const noexcept {
    return kind == FeedForwardKind::kGated ? gate_rows : up_rows;
  }
};

}  // namespace manyhead
