#pragma once

#include <cstdint>

#include "kernels/functions.inl.h"
#include "kernels/simd.inl.h"
#include "kernels/vector_kernels.h"

/// Computes row operations on whole vectors. The last, partial vector uses the same arithmetic as
/// the others, so an element's bits do not depend on how a row was divided.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// Calls full(i) for each whole vector of [0, n) and tail(i, rest) for the partial one, if there is
/// one.
template <class V, class Full, class Tail>
MANYHEAD_INLINE void ForVectors(std::int64_t n, Full&& full, Tail&& tail) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) full(i);
  if (i < n) tail(i, static_cast<int>(n - i));
}

/// Computes out[i] = op(x[i]) over [0, n).
template <class V, class Op>
MANYHEAD_INLINE void Map(const float* x, std::int64_t n, float* out, Op&& op) {
  ForVectors<V>(
      n, [&](std::int64_t i) { V::Store(out + i, op(V::Load(x + i))); },
      [&](std::int64_t i, int rest) { V::StoreTail(out + i, op(V::LoadTail(x + i, rest)), rest); });
}

/// Computes out[i] = op(x[i], y[i]) over [0, n).
template <class V, class Op>
MANYHEAD_INLINE void Map2(const float* x, const float* y, std::int64_t n, float* out, Op&& op) {
  ForVectors<V>(
      n, [&](std::int64_t i) { V::Store(out + i, op(V::Load(x + i), V::Load(y + i))); },
      [&](std::int64_t i, int rest) {
        V::StoreTail(out + i, op(V::LoadTail(x + i, rest), V::LoadTail(y + i, rest)), rest);
      });
}

template <class V>
MANYHEAD_INLINE float SumOfSquares(const float* x, std::int64_t n) {
  typename V::F sum = V::Zero();
  ForVectors<V>(
      n,
      [&](std::int64_t i) {
        const auto v = V::Load(x + i);
        sum = V::Fma(v, v, sum);
      },
      [&](std::int64_t i, int rest) {
        const auto v = V::LoadTail(x + i, rest);
        sum = V::Fma(v, v, sum);
      });
  return V::ReduceAdd(sum);
}

template <class V>
void RmsNorm(const float* x, const float* weight, float eps, std::int64_t n, float* out) {
  const float mean = SumOfSquares<V>(x, n) / static_cast<float>(n);
  const auto factor = V::Set(1.0F / __builtin_sqrtf(mean + eps));
  if (weight == nullptr)
    Map<V>(x, n, out, [&](auto v) { return v * factor; });
  else
    Map2<V>(x, weight, n, out, [&](auto v, auto w) { return v * factor * w; });
}

template <class V>
void Add(float* x, const float* y, std::int64_t n) {
  Map2<V>(x, y, n, x, [](auto a, auto b) { return a + b; });
}

template <class V>
void Scale(float* x, float factor, std::int64_t n) {
  const auto f = V::Set(factor);
  Map<V>(x, n, x, [&](auto v) { return v * f; });
}

/// Returns 1 / (1 + e^-x); NaN stays NaN.
template <class V>
MANYHEAD_INLINE typename V::F Sigmoid(typename V::F x) {
  return V::Set(1.0F) / (V::Set(1.0F) + Exp<V>(V::Zero() - x));
}

template <class V>
void SiluMul(const float* gate, const float* up, std::int64_t n, float* out) {
  Map2<V>(gate, up, n, out, [](auto g, auto u) { return g * Sigmoid<V>(g) * u; });
}

template <class V>
void GeluMul(const float* gate, const float* up, std::int64_t n, float* out) {
  // 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  Map2<V>(gate, up, n, out, [](auto g, auto u) {
    const auto twice = V::Set(1.5957691216F) * V::Fma(V::Set(0.044715F) * g * g, g, g);
    return g * Sigmoid<V>(twice) * u;
  });
}

template <class V>
void Softcap(float* x, float cap, std::int64_t n) {
  // tanh(y) = 2 sigmoid(2y) - 1
  const auto twice_over_cap = V::Set(2.0F / cap), c = V::Set(cap), two_c = V::Set(2.0F * cap);
  Map<V>(x, n, x,
         [&](auto v) { return V::Fma(two_c, Sigmoid<V>(v * twice_over_cap), V::Zero() - c); });
}

template <class V>
void RopeHalfSplit(float* x, const float* cosine, const float* sine, std::int64_t half) {
  float* y = x + half;
  ForVectors<V>(
      half,
      [&](std::int64_t i) {
        const auto a = V::Load(x + i), b = V::Load(y + i);
        const auto c = V::Load(cosine + i), s = V::Load(sine + i);
        V::Store(x + i, V::Fnma(b, s, a * c));
        V::Store(y + i, V::Fma(a, s, b * c));
      },
      [&](std::int64_t i, int rest) {
        const auto a = V::LoadTail(x + i, rest), b = V::LoadTail(y + i, rest);
        const auto c = V::LoadTail(cosine + i, rest), s = V::LoadTail(sine + i, rest);
        V::StoreTail(x + i, V::Fnma(b, s, a * c), rest);
        V::StoreTail(y + i, V::Fma(a, s, b * c), rest);
      });
}

/// Rotates with scalar code: the pairs lie across lanes, and rotation is a small part of a layer's
/// work.
void RopeInterleaved(float* x, const float* cosine, const float* sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosine[i] - b * sine[i];
    x[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

template <class V>
constexpr VectorKernels MakeVectorKernels() {
  return {&RmsNorm<V>, &Add<V>,     &Scale<V>,         &SiluMul<V>,
          &GeluMul<V>, &Softcap<V>, &RopeHalfSplit<V>, &RopeInterleaved};
}

}  // namespace
}  // namespace manyhead::kernels
