#pragma once

#include <cstdint>

/// Numbers of the KV types one at a time, in integer arithmetic: the flush-to-zero mode of a
/// parallel region leaves it alone, and the bits are those of the CPU's f16 conversions.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

inline std::uint32_t BitsOf(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float FloatOf(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// bits >> shift, rounded to nearest even.
inline std::uint32_t ShiftRounded(std::uint32_t bits, int shift) {
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  return (bits + half - 1 + (bits >> shift & 1)) >> shift;
}

inline void Narrow(float value, float* to) { *to = value; }

inline void Narrow(float value, Bf16* to) {
  const std::uint32_t bits = BitsOf(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  to->bits = static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40 : ShiftRounded(bits, 16));
}

inline void Narrow(float value, F16* to) {
  const std::uint32_t bits = BitsOf(value), magnitude = bits & 0x7FFFFFFF;
  std::uint32_t half;
  if (magnitude > 0x7F800000) {
    half = 0x7E00 | (magnitude >> 13 & 0x3FF);  // NaN: quiet, its upper payload bits kept
  } else if (magnitude >= 0x477FF000) {
    half = 0x7C00;  // from 65520 on the nearest is infinity
  } else if (magnitude >= 0x38800000) {
    half = ShiftRounded(magnitude - 0x38000000, 13);  // exponent bias 127 to 15
  } else if (magnitude >= 0x33000000) {
    // Below 2^-14 f16 has fixed point of 2^-24: 24 bits of significand, shifted by the exponent.
    const int shift = 126 - static_cast<int>(magnitude >> 23);
    half = ShiftRounded((magnitude & 0x7FFFFF) | 0x800000, shift);
  } else {
    half = 0;  // below 2^-25
  }
  to->bits = static_cast<std::uint16_t>((bits >> 16 & 0x8000) | half);
}

inline float Widen(float value) { return value; }

inline float Widen(Bf16 value) { return FloatOf(static_cast<std::uint32_t>(value.bits) << 16); }

inline float Widen(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const std::uint32_t exponent = value.bits >> 10 & 0x1F, fraction = value.bits & 0x3FF;
  if (exponent == 0x1F)
    return FloatOf(sign | 0x7F800000 | fraction << 13 | (fraction != 0 ? 0x400000 : 0));
  if (exponent != 0) return FloatOf(sign | (exponent + 112) << 23 | fraction << 13);
  return FloatOf(sign | BitsOf(static_cast<float>(fraction) * 0x1p-24F));
}

}  // namespace
}  // namespace manyhead::kernels
