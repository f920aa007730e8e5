#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd.inl.h"

/// Defines the vector operations of the linear kernels, one policy class per width.
///
/// Integer policies hold 32 bytes of each of kRows weight rows, so that AVX-512 runs the algorithm
/// of AVX2 on two rows at once and both give the same bits. Loads take the first row's address and
/// the distance to the second in bytes.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

inline std::uint16_t LoadU16(const std::uint8_t* p) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

inline std::uint32_t LoadU32(const std::uint8_t* p) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

inline std::uint64_t LoadU64(const std::uint8_t* p) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

inline __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

/// Returns the sum of eight lanes, always in the same order.
inline float SumLanes(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

struct OneRow {
  static constexpr int kRows = 1;
  using Int = __m256i;
  using Float = __m256;

  static Int Load(const std::uint8_t* p, std::int64_t) { return Load256(p); }
  /// Loads 16 bytes of each row into both of its 128-bit lanes.
  static Int LoadTwice(const std::uint8_t* p, std::int64_t) {
    return _mm256_broadcastsi128_si256(Load128(p));
  }
  /// Loads the same 32 bytes for every row.
  static Int Same(const void* p) { return Load256(p); }
  static Int Set8(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static Int Set16(int value) { return _mm256_set1_epi16(static_cast<short>(value)); }
  static Int Zero() { return _mm256_setzero_si256(); }
  static Int And(Int a, Int b) { return _mm256_and_si256(a, b); }
  static Int Or(Int a, Int b) { return _mm256_or_si256(a, b); }
  static Int Sub8(Int a, Int b) { return _mm256_sub_epi8(a, b); }
  static Int Add32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int Sub32(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  static Int Shuffle(Int a, Int b) { return _mm256_shuffle_epi8(a, b); }
  template <int kBits>
  static Int ShiftRight16(Int a) {
    return _mm256_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft16(Int a) {
    return _mm256_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft32(Int a) {
    return _mm256_slli_epi32(a, kBits);
  }
  /// Returns the low nibbles of each row's first lane, the high ones in its second.
  static Int SplitNibbles(Int a) {
    const Int shifted = _mm256_srlv_epi32(a, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return And(shifted, Set8(15));
  }
  /// Adds 16 to each byte i whose bit i is set in the row's 32 bits at p.
  static Int AddFifthBit(Int q, const std::uint8_t* p, std::int64_t) {
    const Int byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const Int bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const Int bytes = Shuffle(_mm256_set1_epi32(static_cast<int>(LoadU32(p))), byte_of);
    return Or(q, And(_mm256_cmpeq_epi8(And(bytes, bit_of), bit_of), Set8(16)));
  }
  static Int Abs8(Int a) { return _mm256_abs_epi8(a); }
  /// Returns a with its sign flipped where b is negative; where b is zero the result does not
  /// matter.
  static Int FlipSign8(Int a, Int b) { return _mm256_sign_epi8(a, b); }
  /// Returns sums of two neighbouring products of unsigned a and signed b, saturated to 16 bits.
  static Int MulPairs8(Int a, Int b) { return _mm256_maddubs_epi16(a, b); }
  static Int MulPairs16(Int a, Int b) { return _mm256_madd_epi16(a, b); }

  /// Repeats one 16-byte lane of each row: DoubleFirstLane the first, DoubleSecondLane the second.
  static Int DoubleFirstLane(Int a) { return _mm256_permute2x128_si256(a, a, 0x00); }
  static Int DoubleSecondLane(Int a) { return _mm256_permute2x128_si256(a, a, 0x11); }
  /// Makes one vector of per-row values.
  template <class Fn>
  static Int PerRow(const std::uint8_t* p, std::int64_t, Fn&& fn) {
    return fn(p);
  }

  static Float ToFloat(Int a) { return _mm256_cvtepi32_ps(a); }
  static Float ZeroFloat() { return _mm256_setzero_ps(); }
  static Float Set(float value) { return _mm256_set1_ps(value); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float Fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
  /// Returns `value` in the first lane of every row, zero elsewhere.
  static Float FirstLane(float value) { return _mm256_setr_ps(value, 0, 0, 0, 0, 0, 0, 0); }
  /// Returns the f16 at p of each row in all of its lanes.
  static Float LoadHalf(const std::uint8_t* p, std::int64_t) {
    return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(LoadU16(p))));
  }
  static void Sums(Float a, float* sums) { sums[0] = SumLanes(a); }
};

#ifdef __AVX512BW__
struct TwoRows {
  static constexpr int kRows = 2;
  using Int = __m512i;
  using Float = __m512;

  static Int Join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  }
  static Int Load(const std::uint8_t* p, std::int64_t row_bytes) {
    return Join(Load256(p), Load256(p + row_bytes));
  }
  static Int LoadTwice(const std::uint8_t* p, std::int64_t row_bytes) {
    return _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(Load128(p)), 0xff00,
                                       Load128(p + row_bytes));
  }
  static Int Same(const void* p) { return _mm512_broadcast_i64x4(Load256(p)); }
  static Int Set8(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
  static Int Set16(int value) { return _mm512_set1_epi16(static_cast<short>(value)); }
  static Int Zero() { return _mm512_setzero_si512(); }
  static Int And(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int Or(Int a, Int b) { return _mm512_or_si512(a, b); }
  static Int Sub8(Int a, Int b) { return _mm512_sub_epi8(a, b); }
  static Int Add32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int Sub32(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  static Int Shuffle(Int a, Int b) { return _mm512_shuffle_epi8(a, b); }
  template <int kBits>
  static Int ShiftRight16(Int a) {
    return _mm512_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft16(Int a) {
    return _mm512_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft32(Int a) {
    return _mm512_slli_epi32(a, kBits);
  }
  static Int SplitNibbles(Int a) {
    const Int counts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
    return And(_mm512_srlv_epi32(a, counts), Set8(15));
  }
  static Int AddFifthBit(Int q, const std::uint8_t* p, std::int64_t row_bytes) {
    const __mmask64 bits = LoadU32(p) | std::uint64_t{LoadU32(p + row_bytes)} << 32;
    return _mm512_mask_add_epi8(q, bits, q, Set8(16));
  }
  static Int Abs8(Int a) { return _mm512_abs_epi8(a); }
  static Int FlipSign8(Int a, Int b) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(b), Zero(), a);
  }
  static Int MulPairs8(Int a, Int b) { return _mm512_maddubs_epi16(a, b); }
  static Int MulPairs16(Int a, Int b) { return _mm512_madd_epi16(a, b); }
  static Int DoubleFirstLane(Int a) { return _mm512_shuffle_i64x2(a, a, 0xa0); }
  static Int DoubleSecondLane(Int a) { return _mm512_shuffle_i64x2(a, a, 0xf5); }
  template <class Fn>
  static Int PerRow(const std::uint8_t* p, std::int64_t row_bytes, Fn&& fn) {
    return Join(fn(p), fn(p + row_bytes));
  }

  static Float ToFloat(Int a) { return _mm512_cvtepi32_ps(a); }
  static Float ZeroFloat() { return _mm512_setzero_ps(); }
  static Float Set(float value) { return _mm512_set1_ps(value); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float Fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
  static Float FirstLane(float value) { return _mm512_maskz_mov_ps(0x0101, Set(value)); }
  static Float LoadHalf(const std::uint8_t* p, std::int64_t row_bytes) {
    const __m256i first = _mm256_set1_epi16(static_cast<short>(LoadU16(p)));
    return _mm512_cvtph_ps(
        _mm256_mask_set1_epi16(first, 0xff00, static_cast<short>(LoadU16(p + row_bytes))));
  }
  static void Sums(Float a, float* sums) {
    sums[0] = SumLanes(_mm512_castps512_ps256(a));
    sums[1] = SumLanes(_mm512_extractf32x8_ps(a, 1));
  }
};
#endif

/// Defines f32 vectors along a row.
struct Float8 {
  static constexpr int kLanes = 8;
  using Float = __m256;
  static Float Zero() { return _mm256_setzero_ps(); }
  static Float Set(float value) { return _mm256_set1_ps(value); }
  static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Float a) { _mm256_storeu_ps(p, a); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static float Sum(Float a) { return SumLanes(a); }
  static Float LoadF32(const std::uint8_t* p) { return _mm256_castsi256_ps(Load256(p)); }
  static Float LoadF16(const std::uint8_t* p) { return _mm256_cvtph_ps(Load128(p)); }
  static Float LoadBf16(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load128(p)), 16));
  }
  /// Widens 32 signed bytes.
  static void Widen(__m256i q, Float (&w)[4]) {
    const __m128i low = _mm256_castsi256_si128(q), high = _mm256_extracti128_si256(q, 1);
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)));
    w[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high));
    w[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(high, 8)));
  }
};

#ifdef __AVX512BW__
struct Float16 {
  static constexpr int kLanes = 16;
  using Float = __m512;
  static Float Zero() { return _mm512_setzero_ps(); }
  static Float Set(float value) { return _mm512_set1_ps(value); }
  static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Float a) { _mm512_storeu_ps(p, a); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static float Sum(Float a) {
    return SumLanes(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
  }
  static Float LoadF32(const std::uint8_t* p) { return _mm512_loadu_ps(p); }
  static Float LoadF16(const std::uint8_t* p) { return _mm512_cvtph_ps(Load256(p)); }
  static Float LoadBf16(const std::uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load256(p)), 16));
  }
  static void Widen(__m256i q, Float (&w)[2]) {
    w[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(q)));
    w[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1)));
  }
};
#endif

}  // namespace
}  // namespace manyhead::kernels
