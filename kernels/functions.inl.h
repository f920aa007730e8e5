#pragma once

#include "kernels/simd.inl.h"

/// Computes exponential and hyperbolic tangent of a register. V is Simd, or another set of its
/// operations.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

/// Returns e^r for |r| <= ln2 / 2, where x = n ln2 + r: a polynomial, exactly 1 for r = 0.
///
/// Source   Cephes expf: its coefficients and its ln2 in two parts.
template <class V>
MANYHEAD_INLINE typename V::F ExpReduced(typename V::F x, typename V::F n) {
  using F = typename V::F;
  F r = V::Fnma(n, V::Set(0.693359375F), x);
  r = V::Fma(n, V::Set(2.12194440e-4F), r);
  F p = V::Set(1.9875691500e-4F);
  p = V::Fma(p, r, V::Set(1.3981999507e-3F));
  p = V::Fma(p, r, V::Set(8.3334519073e-3F));
  p = V::Fma(p, r, V::Set(4.1665795894e-2F));
  p = V::Fma(p, r, V::Set(1.6666665459e-1F));
  p = V::Fma(p, r, V::Set(5.0000001201e-1F));
  p = V::Fma(p, r, V::Set(1.0F));
  return V::Fma(p, r, V::Set(1.0F));
}

/// Returns e^x within 2e-7 of the value for x in [-87.3, 88.7]; below that 0 or a denormal, above
/// it +inf; NaN stays NaN, e^0 is exactly 1, e^-inf exactly 0.
template <class V>
MANYHEAD_INLINE typename V::F Exp(typename V::F x) {
  // Beyond these limits the result is 0 or inf anyway; NaN is kept, being the second operand.
  x = V::Min(V::Set(120.0F), V::Max(V::Set(-150.0F), x));
  const typename V::F n = V::Round(x * V::Set(1.44269504F));
  return V::Ldexp(ExpReduced<V>(x, n), n);
}

/// Returns e^x for x <= 0, in fewer operations: within (2 + |x|) * 1e-7 of the value, so within
/// 2e-7 of 1; results below 2^-126 may be any number from 0 to there, below e^-104 exactly 0. NaN
/// stays NaN, e^0 is exactly 1.
///
/// Source   2^r as 1 + r q(r), q the polynomial of degree 4 whose largest relative error over
///          [-1/2, 1/2] is least (9.2e-8), found by Lawson's iteratively reweighted least squares.
template <class V>
MANYHEAD_INLINE typename V::F ExpNonPositive(typename V::F x) {
  using F = typename V::F;
  F r;  // Fma: a product that contracts with Split's subtraction would make n fractional
  const typename V::Whole n = V::Split(V::Fma(x, V::Set(1.44269504F), V::Zero()), &r);
  F p = V::Set(1.32647273e-3F);
  p = V::Fma(p, r, V::Set(9.67151299e-3F));
  p = V::Fma(p, r, V::Set(5.55073358e-2F));
  p = V::Fma(p, r, V::Set(2.40222424e-1F));
  p = V::Fma(p, r, V::Set(6.93147004e-1F));
  return V::ScaleDown(V::Fma(p, r, V::Set(1.0F)), n);
}

/// Returns tanh within 4e-7 relative; NaN stays NaN.
///
/// Source   the rational function of degree 13 over 6 that Eigen uses (ptanh_float).
template <class V>
MANYHEAD_INLINE typename V::F Tanh(typename V::F x) {
  using F = typename V::F;
  x = V::Min(V::Set(7.90531110763549805F), V::Max(V::Set(-7.90531110763549805F), x));
  const F z = x * x;
  F p = V::Set(-2.76076847742355e-16F);
  p = V::Fma(p, z, V::Set(2.00018790482477e-13F));
  p = V::Fma(p, z, V::Set(-8.60467152213735e-11F));
  p = V::Fma(p, z, V::Set(5.12229709037114e-08F));
  p = V::Fma(p, z, V::Set(1.48572235717979e-05F));
  p = V::Fma(p, z, V::Set(6.37261928875436e-04F));
  p = V::Fma(p, z, V::Set(4.89352455891786e-03F));
  F q = V::Set(1.19825839466702e-06F);
  q = V::Fma(q, z, V::Set(1.18534705686654e-04F));
  q = V::Fma(q, z, V::Set(2.26843463243900e-03F));
  q = V::Fma(q, z, V::Set(4.89352518554385e-03F));
  return x * p / q;
}

}  // namespace
}  // namespace manyhead::kernels
