#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "manyhead/multi_head_attention.h"

namespace manyhead::layer_testing {

/// Uniform in [-size, size), the same on every standard library.
inline std::vector<float> RandomFloats(std::int64_t n, std::uint32_t seed, float size = 1) {
  std::mt19937 bits(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = (static_cast<float>(bits() >> 8) * 0x1p-23F - 1.0F) * size;
  return values;
}

/// The layer's numbers as plain f32, for the reference and, in the simplest case, for the layer.
struct Matrices {
  std::vector<float> query, key, value, output;          // W
  std::vector<float> query_b, key_b, value_b, output_b;  // b, empty = none

  MultiHeadAttentionWeights AsWeights() const {
    return {F32Weights(query, query_b), F32Weights(key, key_b), F32Weights(value, value_b),
            F32Weights(output, output_b)};
  }
};

/// Random weights that keep activations of order one.
inline Matrices RandomMatrices(const MultiHeadAttentionParams& params, bool biases,
                               std::uint32_t seed) {
  const AttentionParams& a = params.attention;
  const std::int64_t d = params.d_model, M = params.memory_dim > 0 ? params.memory_dim : d;
  const std::int64_t H = a.num_heads, K = a.num_kv_heads > 0 ? a.num_kv_heads : H;
  const std::int64_t D = a.head_dim > 0 ? a.head_dim : d / H;
  const std::int64_t Dv = a.head_dim_v > 0 ? a.head_dim_v : D;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return RandomFloats(rows * cols, seed++, 1.7F / std::sqrt(static_cast<float>(cols)));
  };
  const auto bias = [&](std::int64_t rows) {
    return biases ? RandomFloats(rows, seed++) : std::vector<float>();
  };
  return {matrix(H * D, d), matrix(K * D, M), matrix(K * Dv, M), matrix(d, H * Dv),
          bias(H * D),      bias(K * D),      bias(K * Dv),      bias(d)};
}

/// The layer from its definition, in double.
struct Expected {
  std::vector<double> out;    // [T, d_model]
  std::vector<double> heads;  // [H, T, Dv]
  std::vector<double> terms;  // [H, T, d_model]
  std::vector<double> sums;   // [T, d_model] sum over heads and elements of |W_o| |head|
};

/// `params` are resolved. Queries are the last T of the kv tokens; without `memory` these are x's.
Expected Reference(const MultiHeadAttentionParams& params, const Matrices& weights,
                   const std::vector<float>& x, const std::vector<float>* memory = nullptr);

}  // namespace manyhead::layer_testing
