#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/elements.inl.h"

#ifdef __AVX2__
#include <immintrin.h>

#include <xsimd/xsimd.hpp>
#endif

/// Defines the vector operations that kernels are written in: `Simd` is the widest set that the
/// including translation unit is compiled for (AVX-512, AVX2 or plain 4-lane arithmetic of baseline
/// x86-64).
///
///   Simd::F       a register of kLanes floats with + - * /
///   Simd::Mask    one flag per lane
///   Simd::Whole   whole numbers, as Split writes them for ScaleDown
///   LanesOf, Bits convert a Mask from and to the low bits of a number, lane 0 the lowest
///   Load, Store   f32, F16 and Bf16 in memory (I8 and nibbles: Load only), unaligned; the *Tail
///                 forms access the first n lanes only (0 <= n <= kLanes), the other lanes of a
///                 LoadTail are 0
///
/// A kernel that must give the same bits however the compiler inlines it writes a * b + c as Fma:
/// the compiler may or may not contract plain operators.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

#if defined(__AVX512F__)

struct Simd {
  using F = xsimd::batch<float, xsimd::avx512bw>;
  using Mask = __mmask16;
  using Whole = F;
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;

  static MANYHEAD_INLINE F Zero() { return _mm512_setzero_ps(); }
  static MANYHEAD_INLINE F Set(float x) { return _mm512_set1_ps(x); }
  static MANYHEAD_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static MANYHEAD_INLINE F Load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static MANYHEAD_INLINE F Load(const Bf16* p) {
    return FromBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static MANYHEAD_INLINE F LoadTail(const float* p, int n) {
    return _mm512_maskz_loadu_ps(FirstLanes(n), p);
  }
  static MANYHEAD_INLINE F LoadTail(const F16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static MANYHEAD_INLINE F LoadTail(const Bf16* p, int n) {
    return FromBf16(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static MANYHEAD_INLINE F Load(const I8* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// Loads nibble `half` (0 low, 1 high) of kLanes pairs.
  static MANYHEAD_INLINE F LoadNibbles(const I4* p, int half) {
    const __m512i pairs =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i shifted = _mm512_srlv_epi32(pairs, _mm512_set1_epi32(4 * half));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)));
  }
  static MANYHEAD_INLINE void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static MANYHEAD_INLINE void Store(F16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToF16(x));
  }
  static MANYHEAD_INLINE void Store(Bf16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToBf16(x));
  }
  static MANYHEAD_INLINE void StoreTail(float* p, F x, int n) {
    _mm512_mask_storeu_ps(p, FirstLanes(n), x);
  }
  static MANYHEAD_INLINE void StoreTail(F16* p, F x, int n) {
    _mm256_mask_storeu_epi16(p, FirstLanes(n), ToF16(x));
  }
  static MANYHEAD_INLINE void StoreTail(Bf16* p, F x, int n) {
    _mm256_mask_storeu_epi16(p, FirstLanes(n), ToBf16(x));
  }

  static MANYHEAD_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// Returns c - a * b.
  static MANYHEAD_INLINE F Fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  /// Returns a > b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  /// Returns a < b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }
  /// Rounds to the nearest whole number, ties to even.
  static MANYHEAD_INLINE F Round(F x) { return _mm512_roundscale_ps(x, 8); }
  static MANYHEAD_INLINE F Sqrt(F x) { return _mm512_sqrt_ps(x); }

  static MANYHEAD_INLINE F Iota() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static MANYHEAD_INLINE Mask FirstLanes(int n) { return static_cast<Mask>((1U << n) - 1U); }
  static MANYHEAD_INLINE Mask LanesOf(std::uint64_t bits) { return static_cast<Mask>(bits); }
  static MANYHEAD_INLINE std::uint64_t Bits(Mask mask) { return mask; }
  static MANYHEAD_INLINE Mask Less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static MANYHEAD_INLINE F Select(Mask mask, F yes, F no) {
    return _mm512_mask_blend_ps(mask, no, yes);
  }

  static MANYHEAD_INLINE float ReduceAdd(F x) {
    const __m512 v = x;
    return Reduce256(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
  static MANYHEAD_INLINE float ReduceMax(F x) {
    const __m512 v = x;
    const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
  }
  /// Returns x * 2^n for whole n, also where the result is denormal, zero or infinite.
  static MANYHEAD_INLINE F Ldexp(F x, F n) { return _mm512_scalef_ps(x, n); }
  /// Divides x = whole + fraction, |fraction| <= 1/2; the fraction of -inf is 0.
  static MANYHEAD_INLINE Whole Split(F x, F* fraction) {
    *fraction = _mm512_reduce_ps(x, 8);
    return x - *fraction;
  }
  /// Returns y * 2^n for y in [1/2, 2] and n <= 0; a denormal result may be any number between 0
  /// and the smallest normal number, and is 0 for n <= -150.
  static MANYHEAD_INLINE F ScaleDown(F y, Whole n) { return _mm512_scalef_ps(y, n); }

 private:
  static MANYHEAD_INLINE float Reduce256(__m256 y) {
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
  }
  static MANYHEAD_INLINE __m512 FromBf16(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static MANYHEAD_INLINE __m256i ToF16(F x) { return _mm512_cvtps_ph(x, 0); }
  static MANYHEAD_INLINE __m256i ToBf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
  }
};

#elif defined(__AVX2__)

struct Simd {
  using F = xsimd::batch<float, xsimd::fma3<xsimd::avx2> >;
  using Mask = __m256;
  using Whole = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;

  static MANYHEAD_INLINE F Zero() { return _mm256_setzero_ps(); }
  static MANYHEAD_INLINE F Set(float x) { return _mm256_set1_ps(x); }
  static MANYHEAD_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static MANYHEAD_INLINE F Load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static MANYHEAD_INLINE F Load(const Bf16* p) {
    return FromBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static MANYHEAD_INLINE F LoadTail(const float* p, int n) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(FirstLanes(n)));
  }
  static MANYHEAD_INLINE F LoadTail(const F16* p, int n) {
    return _mm256_cvtph_ps(LoadTail16(p, n));
  }
  static MANYHEAD_INLINE F LoadTail(const Bf16* p, int n) { return FromBf16(LoadTail16(p, n)); }
  static MANYHEAD_INLINE F Load(const I8* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// Loads nibble `half` (0 low, 1 high) of kLanes pairs.
  static MANYHEAD_INLINE F LoadNibbles(const I4* p, int half) {
    const __m256i pairs =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i shifted = _mm256_srlv_epi32(pairs, _mm256_set1_epi32(4 * half));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
  }
  static MANYHEAD_INLINE void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static MANYHEAD_INLINE void Store(F16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ToF16(x));
  }
  static MANYHEAD_INLINE void Store(Bf16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ToBf16(x));
  }
  static MANYHEAD_INLINE void StoreTail(float* p, F x, int n) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(FirstLanes(n)), x);
  }
  static MANYHEAD_INLINE void StoreTail(F16* p, F x, int n) { StoreTail16(p, ToF16(x), n); }
  static MANYHEAD_INLINE void StoreTail(Bf16* p, F x, int n) { StoreTail16(p, ToBf16(x), n); }

  static MANYHEAD_INLINE F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  /// Returns c - a * b.
  static MANYHEAD_INLINE F Fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  /// Returns a > b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Max(F a, F b) { return _mm256_max_ps(a, b); }
  /// Returns a < b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Min(F a, F b) { return _mm256_min_ps(a, b); }
  /// Rounds to the nearest whole number, ties to even.
  static MANYHEAD_INLINE F Round(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static MANYHEAD_INLINE F Sqrt(F x) { return _mm256_sqrt_ps(x); }

  static MANYHEAD_INLINE F Iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static MANYHEAD_INLINE Mask LanesOf(std::uint64_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
  }
  static MANYHEAD_INLINE std::uint64_t Bits(Mask mask) {
    return static_cast<std::uint64_t>(_mm256_movemask_ps(mask));
  }
  static MANYHEAD_INLINE Mask FirstLanes(int n) {
    return _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
  }
  static MANYHEAD_INLINE Mask Less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static MANYHEAD_INLINE F Select(Mask mask, F yes, F no) {
    return _mm256_blendv_ps(no, yes, mask);
  }

  static MANYHEAD_INLINE float ReduceAdd(F x) {
    const __m256 y = x;
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
  }
  static MANYHEAD_INLINE float ReduceMax(F x) {
    const __m256 y = x;
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
  }
  /// Returns x * 2^n for whole n in [-252, 254], also where the result is denormal, zero or
  /// infinite.
  static MANYHEAD_INLINE F Ldexp(F x, F n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return x * PowerOf2(half) * PowerOf2(_mm256_sub_epi32(whole, half));
  }
  /// Divides max(x, -127) = whole + fraction, |fraction| <= 1/2; NaN stays NaN in the fraction.
  static MANYHEAD_INLINE Whole Split(F x, F* fraction) {
    x = Max(Set(-127.0F), x);
    const __m256i whole = _mm256_cvtps_epi32(x);
    *fraction = x - F(_mm256_cvtepi32_ps(whole));
    return whole;
  }
  /// Returns y * 2^n for y in [1/2, 2] and n >= -127; a denormal result may be any number between 0
  /// and the smallest normal number, and is 0 for 1 * 2^-127.
  static MANYHEAD_INLINE F ScaleDown(F y, Whole n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(n, 23)));
  }

 private:
  static MANYHEAD_INLINE F PowerOf2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static MANYHEAD_INLINE __m256 FromBf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static MANYHEAD_INLINE __m128i ToF16(F x) { return _mm256_cvtps_ph(x, 0); }
  static MANYHEAD_INLINE __m128i ToBf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  }
  static MANYHEAD_INLINE __m128i LoadTail16(const void* p, int n) {
    std::uint16_t lanes[kLanes] = {};
    std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof lanes[0]);
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  }
  static MANYHEAD_INLINE void StoreTail16(void* p, __m128i x, int n) {
    std::uint16_t lanes[kLanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), x);
    std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof lanes[0]);
  }
};

#else

struct Simd {
  using F = float __attribute__((vector_size(16)));
  using Mask = std::int32_t __attribute__((vector_size(16)));
  using Whole = Mask;
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 16;

  static MANYHEAD_INLINE F Zero() { return Set(0); }
  static MANYHEAD_INLINE F Set(float x) { return F{x, x, x, x}; }
  static MANYHEAD_INLINE F Load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  /// Loads nibble `half` (0 low, 1 high) of kLanes pairs.
  static MANYHEAD_INLINE F LoadNibbles(const I4* p, int half) {
    const auto nibble = [half](I4 x) { return static_cast<float>(x.pair >> (4 * half) & 15); };
    return F{nibble(p[0]), nibble(p[1]), nibble(p[2]), nibble(p[3])};
  }
  template <class T>
  static MANYHEAD_INLINE F Load(const T* p) {
    return F{Widen(p[0]), Widen(p[1]), Widen(p[2]), Widen(p[3])};
  }
  template <class T>
  static MANYHEAD_INLINE F LoadTail(const T* p, int n) {
    F x = Zero();
    for (int i = 0; i < n; ++i) x[i] = Widen(p[i]);
    return x;
  }
  static MANYHEAD_INLINE void Store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  template <class T>
  static MANYHEAD_INLINE void Store(T* p, F x) {
    StoreTail(p, x, kLanes);
  }
  template <class T>
  static MANYHEAD_INLINE void StoreTail(T* p, F x, int n) {
    for (int i = 0; i < n; ++i) Narrow(x[i], &p[i]);
  }

  static MANYHEAD_INLINE F Fma(F a, F b, F c) { return a * b + c; }
  /// Returns c - a * b.
  static MANYHEAD_INLINE F Fnma(F a, F b, F c) { return c - a * b; }
  /// Returns a > b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Max(F a, F b) { return a > b ? a : b; }
  /// Returns a < b ? a : b, hence b where either is NaN.
  static MANYHEAD_INLINE F Min(F a, F b) { return a < b ? a : b; }
  /// Rounds to the nearest whole number, ties to even; exact for |x| < 2^22.
  static MANYHEAD_INLINE F Round(F x) {
    const F magic = Set(12582912.0F);  // 1.5 * 2^23: its last bit has the weight 1
    return (x + magic) - magic;
  }
  static MANYHEAD_INLINE F Sqrt(F x) {
    return F{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
             __builtin_sqrtf(x[3])};
  }

  static MANYHEAD_INLINE F Iota() { return F{0, 1, 2, 3}; }
  static MANYHEAD_INLINE Mask FirstLanes(int n) { return Mask{0, 1, 2, 3} < Mask{n, n, n, n}; }
  static MANYHEAD_INLINE Mask LanesOf(std::uint64_t bits) {
    const int low = static_cast<int>(bits & 15);
    return (Mask{low, low, low, low} & Mask{1, 2, 4, 8}) != Mask{0, 0, 0, 0};
  }
  static MANYHEAD_INLINE std::uint64_t Bits(Mask mask) {
    return static_cast<std::uint64_t>((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) |
                                      (mask[3] & 8));
  }
  static MANYHEAD_INLINE Mask Less(F a, F b) { return a < b; }
  static MANYHEAD_INLINE F Select(Mask mask, F yes, F no) { return mask ? yes : no; }

  static MANYHEAD_INLINE float ReduceAdd(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static MANYHEAD_INLINE float ReduceMax(F x) {
    const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
  }
  /// Returns x * 2^n for whole n in [-252, 254], also where the result is denormal, zero or
  /// infinite.
  static MANYHEAD_INLINE F Ldexp(F x, F n) {
    F y = x;
    for (int i = 0; i < kLanes; ++i) {
      const int whole = static_cast<int>(n[i]), half = whole >> 1;
      y[i] = x[i] * PowerOf2(half) * PowerOf2(whole - half);
    }
    return y;
  }
  /// Divides max(x, -127) = whole + fraction, |fraction| <= 1/2; NaN stays NaN in the fraction.
  static MANYHEAD_INLINE Whole Split(F x, F* fraction) {
    x = Max(Set(-127.0F), x);
    const F whole = Round(x);
    *fraction = x - whole;
    return __builtin_convertvector(Select(x == x, whole, Zero()), Mask);
  }
  /// Returns y * 2^n for y in [1/2, 2] and n >= -127; a denormal result may be any number between 0
  /// and the smallest normal number, and is 0 for 1 * 2^-127.
  static MANYHEAD_INLINE F ScaleDown(F y, Whole n) {
    using Bits = std::uint32_t __attribute__((vector_size(16)));
    return reinterpret_cast<F>(reinterpret_cast<Bits>(y) + (reinterpret_cast<Bits>(n) << 23));
  }

 private:
  static MANYHEAD_INLINE float PowerOf2(int n) {
    return FloatOf(static_cast<std::uint32_t>(n + 127) << 23);
  }
};

#endif

}  // namespace
}  // namespace manyhead::kernels
