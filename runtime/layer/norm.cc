#include "runtime/layer/norm.h"

#include <algorithm>

namespace manyhead {
namespace {

/// Returns the mean, summed in double, so that the order of the sum hardly matters.
float Mean(const float* x, std::int64_t n) noexcept {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += double{x[i]};
  return static_cast<float>(sum / static_cast<double>(n));
}

}  // namespace

/// A layer norm is the RMS norm of the difference from the mean, shifted.
/// Source   arXiv:1607.06450, arXiv:1910.07467.
void Norm::Run(const kernels::VectorKernels& kernels, const float* x, std::int64_t n,
               float* out) const noexcept {
  switch (kind) {
    case NormKind::kNone:
      if (out != x) std::copy_n(x, n, out);
      return;
    case NormKind::kRms:
      return kernels.rms_norm(x, scale, eps, n, out);
    case NormKind::kLayer: {
      const float mean = Mean(x, n);
      for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] - mean;
      kernels.rms_norm(out, scale, eps, n, out);
      return kernels.add(out, shift, n);
    }
  }
}

}  // namespace manyhead
