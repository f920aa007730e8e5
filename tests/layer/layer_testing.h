#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "manyhead/multi_head_attention.h"

namespace manyhead::layer_testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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
/// `bias` [H, T, S] joins the logits; -inf hides a key.
Expected Reference(const MultiHeadAttentionParams& params, const Matrices& weights,
                   const std::vector<float>& x, const std::vector<float>* memory = nullptr,
                   const std::vector<float>* bias = nullptr);

/// Everything a call can give, in buffers of exactly its size that start as NaN.
struct Outputs {
  std::vector<float> out, heads, terms;

  Outputs(const MultiHeadAttentionParams& params, std::int64_t q_len)
      : out(static_cast<std::size_t>(q_len * params.d_model), kNan),
        heads(static_cast<std::size_t>(params.attention.num_heads * q_len *
                                       params.attention.head_dim_v),
              kNan),
        terms(static_cast<std::size_t>(params.attention.num_heads * q_len * params.d_model), kNan) {
  }
  ForwardOptions options() { return {.head_outputs = {heads.data(), terms.data()}}; }
};

template <class T>
double Largest(const std::vector<T>& values) {
  double most = 0;
  for (T v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

/// Within 4e-6 of the largest number: a product of n f32 numbers rounds by less than
/// n * 2^-24 of the sum of its sizes, here n <= 256, and by its square root in the mean; three
/// follow each other, and the softmax in between passes on what moves its logits.
inline void ExpectNear(const std::vector<float>& actual, const std::vector<double>& expected,
                       const char* what, double relative = 4e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  const double tolerance = relative * std::max(1.0, Largest(expected));
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance) << what << " element " << i;
}

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                           const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << what << " element " << i << ": " << a[i] << " and " << b[i];
}

inline MultiHeadAttention Make(const MultiHeadAttentionParams& params, const Matrices& matrices) {
  Result<MultiHeadAttention> layer = MultiHeadAttention::Create(params, matrices.AsWeights());
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *std::move(layer);
}

}  // namespace manyhead::layer_testing
