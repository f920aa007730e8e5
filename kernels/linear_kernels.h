#pragma once

#include <cstddef>
#include <cstdint>

/// Products with weights as GGUF stores them: rows of blocks, read in place.

namespace manyhead::kernels {

/// How the fast product of a weight type wants its activations.
enum class ActivationBlock : std::uint8_t {
  kF32,   ///< as they are
  kQ32,   ///< int8, a scale for each 32
  kQ256,  ///< int8, a scale for each 256
};

/// Activation rows rounded to int8: x[c] ~ scale * q[c], q in [-127, 127]. A block with a value
/// that is not finite has scale NaN, one without a value above 2^-100 has scale 0.
struct QuantizedRows {
  std::int8_t* q;           ///< row stride `stride`
  float* scales;            ///< one per 32 or 256, row stride `stride` / 32
  float* scaled_sums;       ///< kQ32: scale * sum of q, likewise
  std::int16_t* half_sums;  ///< kQ256: sums of 16; per block the 8 even ones, then the 8 odd ones;
                            ///< row stride `stride` / 16
  std::int64_t stride;      ///< elements, a multiple of 256
};

/// y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r] for r in [0, rows), m in [0, M).
///
/// Each output is summed in an order that depends on cols alone.
struct MatvecTask {
  const std::byte* weights;  ///< rows, dense
  std::int64_t row_bytes;
  std::int64_t rows;
  std::int64_t cols;
  const float* x;  ///< [M, cols], row stride `x_stride`; the exact product reads these
  std::int64_t x_stride;
  QuantizedRows xq;  ///< the fast product reads these
  std::int64_t M;
  float* y;  ///< row stride `y_stride`
  std::int64_t y_stride;
  const float* bias;  ///< null = 0
};

struct LinearTypeKernels {
  /// out[i] = the number that element i of dense blocks stands for, i in [0, n), n whole blocks.
  void (*widen)(const std::byte* blocks, std::int64_t n, float* out);
  void (*matvec_exact)(const MatvecTask& task);
  void (*matvec_fast)(const MatvecTask& task);
  ActivationBlock activations;  ///< of matvec_fast
};

inline constexpr int kWeightTypeIds = 31;  ///< WeightType's values lie below

struct LinearKernels {
  LinearTypeKernels types[kWeightTypeIds];  ///< by WeightType; null where there is no such type
  /// Rounds row [n] into row `row` of `out`, n a multiple of 32 or 256.
  void (*quantize_32)(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row);
  void (*quantize_256)(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row);
};

}  // namespace manyhead::kernels
