#pragma once

#include <cstdint>

namespace manyhead {

/// Computes c[m, n] = sum_k a[m, k] * b[n, k], plus the old c[m, n] if `accumulate`. All matrices
/// are row-major with dense rows; strides are in elements.
struct GemmTask {
  std::int64_t M = 0;
  std::int64_t N = 0;
  std::int64_t K = 0;
  const float* a = nullptr;
  std::int64_t a_stride = 0;
  const float* b = nullptr;
  std::int64_t b_stride = 0;
  float* c = nullptr;
  std::int64_t c_stride = 0;
  bool accumulate = false;
};

/// A row of c does not depend on M as long as M is a multiple of this number: oneDNN 2.6 computes
/// rows that remain after its tiles of 6 (AVX2) or 8 (AVX-512) in another order.
inline constexpr std::int64_t kGemmRows = 24;

/// Runs `task` on the calling thread alone, in or out of a parallel region. oneDNN allocates and
/// frees packing buffers inside; when it cannot, plain loops compute the product.
void RunGemm(const GemmTask& task) noexcept;

/// Limits oneDNN's instruction set to the one that MANYHEAD_ISA names: avx2 to AVX2, scalar to
/// SSE4.1, its lowest. oneDNN fixes it for the process at its first use, so it follows the variable
/// and not the instruction set of a single workspace; call before the first RunGemm. Throws
/// bad_alloc.
void ConfigureGemm();

namespace internal {
/// Computes the product by plain loops.
void PlainGemm(const GemmTask& task) noexcept;
}  // namespace internal

}  // namespace manyhead
