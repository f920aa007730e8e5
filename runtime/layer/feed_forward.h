#pragma once

#include <cstdint>

#include "kernels/vector_kernels.h"
#include "manyhead/kinds.h"
#include "runtime/linear/linear.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// A feed-forward block: y = down(f(x)) + bias with f(x) = activation(gate(x)) * up(x), or
/// activation(up(x)) of plain ones. A view of weights and of room for activations, whose three
/// parts run in their order, each called by every thread of a region and ending with a barrier.
struct FeedForward {
  FeedForwardKind kind = FeedForwardKind::kGated;
  Activation activation = Activation::kSilu;
  const WeightView* gate = nullptr;  ///< [F, d]; null of plain blocks
  const WeightView* up = nullptr;    ///< [F, d]
  const WeightView* down = nullptr;  ///< [d, F]
  const float* gate_bias = nullptr;  ///< [F] or null, as are the others
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  float* gate_rows = nullptr;  ///< [M, F]; not read of plain blocks
  float* up_rows = nullptr;    ///< [M, F]
  const kernels::VectorKernels* kernels = nullptr;

  /// gate(x) and up(x), of dense rows x [M, d].
  void ProjectIn(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                 const float* x) const noexcept;
  void Activate(Worker& worker, const LinearRows& rows) const noexcept;
  /// y [M, d], dense.
  void ProjectOut(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                  float* y) const noexcept;

 private:
  float* activated() const noexcept {
    return kind == FeedForwardKind::kGated ? gate_rows : up_rows;
  }
};

}  // namespace manyhead
