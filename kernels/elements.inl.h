#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

/// Defines the types of numbers in memory, converts single numbers, and declares the macros of all
/// kernels.

#define MANYHEAD_INLINE inline __attribute__((always_inline))
#define MANYHEAD_INLINE_LAMBDA __attribute__((always_inline))

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// IEEE binary16 in memory.
struct F16 {
  std::uint16_t bits;
};
/// The upper half of a binary32 in memory.
struct Bf16 {
  std::uint16_t bits;
};

/// An int8 in memory.
struct I8 {
  std::int8_t value;
};
/// Two numbers 0..15 in memory: low and high nibble of a byte.
struct I4 {
  std::uint8_t pair;
};

/// Calls fn.operator()<0>(), ..., <N - 1>(): the indices are constants, so arrays of registers stay
/// in registers at -O2, which a loop does not achieve.
template <int N, class Fn>
MANYHEAD_INLINE void Unroll(Fn&& fn) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) MANYHEAD_INLINE_LAMBDA {
    (fn.template operator()<kIndex>(), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

MANYHEAD_INLINE std::uint32_t BitsOf(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

MANYHEAD_INLINE float FloatOf(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

MANYHEAD_INLINE float Widen(float x) { return x; }

MANYHEAD_INLINE float Widen(I8 x) { return x.value; }

MANYHEAD_INLINE float Widen(Bf16 x) { return FloatOf(std::uint32_t{x.bits} << 16); }

/// Widens with integer arithmetic only, because flushed denormals (MXCSR) would lose small fp16
/// numbers.
MANYHEAD_INLINE float Widen(F16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16, rest = x.bits & 0x7fffU;
  if (rest >= 0x7c00U) return FloatOf(sign | 0x7f800000U | (rest & 0x3ffU) << 13);
  if (rest >= 0x400U) return FloatOf(sign | ((rest << 13) + (112U << 23)));
  if (rest == 0) return FloatOf(sign);
  const int shift = __builtin_clz(rest) - 21;  // moves the leading one to bit 10
  return FloatOf(sign | static_cast<std::uint32_t>(113 - shift) << 23 |
                 ((rest << shift) & 0x3ffU) << 13);
}

MANYHEAD_INLINE void Narrow(float x, float* out) { *out = x; }

/// Rounds to nearest, ties to even; NaN stays NaN.
MANYHEAD_INLINE void Narrow(float x, Bf16* out) {
  const std::uint32_t bits = BitsOf(x);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  out->bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40U
                                             : (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN, numbers that are too large become infinity.
MANYHEAD_INLINE void Narrow(float x, F16* out) {
  const std::uint32_t bits = BitsOf(x), sign = (bits >> 16) & 0x8000U, rest = bits & 0x7fffffffU;
  std::uint32_t half;
  if (rest > 0x7f800000U) {
    half = 0x7e00U | ((rest >> 13) & 0x3ffU);
  } else if (rest >= 0x477ff000U) {  // 65520, halfway between the largest fp16 number and the next
    half = 0x7c00U;
  } else if (rest >= 0x38800000U) {  // 2^-14, the smallest normal fp16 number
    half = (rest - (112U << 23) + 0xfffU + ((rest >> 13) & 1U)) >> 13;
  } else if (rest >= 0x33000000U) {  // 2^-25 rounds to 0, larger numbers to a denormal
    const std::uint32_t mantissa = (rest & 0x7fffffU) | 0x800000U;
    const int shift = 126 - static_cast<int>(rest >> 23);
    const std::uint32_t kept = mantissa >> shift, lost = mantissa & ((1U << shift) - 1U);
    const std::uint32_t tie = 1U << (shift - 1);
    half = kept + ((lost > tie || (lost == tie && (kept & 1U))) ? 1U : 0U);
  } else {
    half = 0;
  }
  out->bits = static_cast<std::uint16_t>(sign | half);
}

}  // namespace
}  // namespace manyhead::kernels
