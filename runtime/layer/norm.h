#pragma once

#include <cstdint>

#include "kernels/vector_kernels.h"
#include "manyhead/kinds.h"

namespace manyhead {

/// A norm of rows; a view of its parameters.
struct Norm {
  NormKind kind = NormKind::kNone;  ///< kNone: rows stay as they are
  const float* scale = nullptr;     ///< [n]
  const float* shift = nullptr;     ///< [n] of kLayer
  float eps = 0;

  /// out [n] = the norm of x [n]; out may be x.
  void Run(const kernels::VectorKernels& kernels, const float* x, std::int64_t n,
           float* out) const noexcept;
};

}  // namespace manyhead
