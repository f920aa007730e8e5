#pragma once

#include <cstdint>

#include "kernels/vector_kernels.h"
#include "manyhead/kinds.h"

namespace manyhead {

/// The norm of a row; a view of its parameters.
struct Norm {
  NormKind kind = NormKind::kNone;  ///< kNone: rows stay as they are
  const float* scale = nullptr;     ///< [n]
  const float* shift = nullptr;     ///< [n] in kLayer
  float eps = 0;

  /// Writes the norm of x [n] to out [n]; out may be x.
  void Run(const kernels::VectorKernels& kernels, const float* x, std::int64_t n,
           float* out) const noexcept;
};

}  // namespace manyhead
