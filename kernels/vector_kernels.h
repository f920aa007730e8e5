#pragma once

#include <cstdint>

/// Declares row operations of a transformer layer on f32 vectors. None allocates, throws or starts
/// threads.

namespace manyhead::kernels {

struct VectorKernels {
  /// Computes out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; weight null = 1. out may be x.
  /// Source   arXiv:1910.07467.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* out);
  /// Computes x[i] += y[i].
  void (*add)(float* x, const float* y, std::int64_t n);
  /// Computes x[i] *= factor.
  void (*scale)(float* x, float factor, std::int64_t n);
  /// Computes out[i] = silu(gate[i]) * up[i]; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  /// Computes out[i] = gelu_tanh(gate[i]) * up[i], the tanh form of arXiv:1606.08415; out may be
  /// gate or up.
  void (*gelu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  /// Computes x[i] = cap * tanh(x[i] / cap).
  void (*softcap)(float* x, float cap, std::int64_t n);
  /// Rotates pairs (x[i], x[i + half]) by the angles whose cosines and sines are given, i in [0,
  /// half).
  void (*rope_half_split)(float* x, const float* cosine, const float* sine, std::int64_t half);
  /// Rotates pairs (x[2i], x[2i + 1]), i in [0, half).
  void (*rope_interleaved)(float* x, const float* cosine, const float* sine, std::int64_t half);
};

}  // namespace manyhead::kernels
