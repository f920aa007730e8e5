#pragma once

#include "kernels/linear_blocks.inl.h"
#include "kernels/linear_kernels.h"

/// Defines the vector operations of the packed products: lanes (eight or sixteen 32-bit numbers,
/// one of each row) and dot products (pairs of bytes added in 16 bits, or four at once in 32).

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

/// A position in a packed block, advanced by bytes of the type's own block.
struct PackedAt {
  const std::uint8_t* at;
  PackedAt operator+(int bytes) const { return {at + kPackedRows * bytes}; }
};

struct EightLanes : OneRow {
  static constexpr int kLanes = 8, kMostActivations = 4;
  static Int Load(PackedAt p, std::int64_t) { return Load256(p.at); }
  static Int Same(const void* p) {
    return _mm256_set1_epi32(static_cast<int>(LoadU32(AsBytes(p))));
  }
  static Int Set32(int value) { return _mm256_set1_epi32(value); }
  static Int Repeat128(__m128i a) { return _mm256_broadcastsi128_si256(a); }
  static Int Add16(Int a, Int b) { return _mm256_add_epi16(a, b); }
  static Int Xor(Int a, Int b) { return _mm256_xor_si256(a, b); }
  static Int Mul32(Int a, Int b) { return _mm256_mullo_epi32(a, b); }
  template <int kBits>
  static Int ShiftRightSigned16(Int a) {
    return _mm256_srai_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftRightSigned32(Int a) {
    return _mm256_srai_epi32(a, kBits);
  }
  static Float LoadHalves(const std::uint8_t* p) { return _mm256_cvtph_ps(Load128(p)); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
  static void StoreFloats(float* p, Float a) { _mm256_storeu_ps(p, a); }
#ifdef __AVXVNNI__
  static Int AddDots(Int sum, Int a, Int b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#endif
  static const std::uint8_t* AsBytes(const void* p) { return static_cast<const std::uint8_t*>(p); }
};

#ifdef __AVX512BW__
struct SixteenLanes : TwoRows {
  static constexpr int kLanes = 16, kMostActivations = 8;
  static Int Load(PackedAt p, std::int64_t) { return _mm512_loadu_si512(p.at); }
  static Int Same(const void* p) {
    return _mm512_set1_epi32(static_cast<int>(LoadU32(static_cast<const std::uint8_t*>(p))));
  }
  static Int Set32(int value) { return _mm512_set1_epi32(value); }
  static Int Repeat128(__m128i a) { return _mm512_broadcast_i32x4(a); }
  static Int Add16(Int a, Int b) { return _mm512_add_epi16(a, b); }
  static Int Xor(Int a, Int b) { return _mm512_xor_si512(a, b); }
  static Int Mul32(Int a, Int b) { return _mm512_mullo_epi32(a, b); }
  template <int kBits>
  static Int ShiftRightSigned16(Int a) {
    return _mm512_srai_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftRightSigned32(Int a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static Float LoadHalves(const std::uint8_t* p) { return _mm512_cvtph_ps(Load256(p)); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
  static void StoreFloats(float* p, Float a) { _mm512_storeu_ps(p, a); }
#ifdef __AVX512VNNI__
  static Int AddDots(Int sum, Int a, Int b) { return _mm512_dpbusd_epi32(sum, a, b); }
#endif
};
#endif

/// Places byte `kByte` of each dword in the bytes of the dword that the pattern marks with 1; the
/// others are 0.
template <class L, int kByte, std::uint32_t kPattern>
MANYHEAD_INLINE typename L::Int SpreadByte(typename L::Int words) {
  const auto from = [](int i) {
    return static_cast<char>(kPattern >> (8 * (i % 4)) & 1U ? i / 4 * 4 + kByte : 0x80);
  };
  return L::Shuffle(
      words, L::Repeat128(_mm_setr_epi8(from(0), from(1), from(2), from(3), from(4), from(5),
                                        from(6), from(7), from(8), from(9), from(10), from(11),
                                        from(12), from(13), from(14), from(15))));
}

/// Computes products of unsigned quants and signed activations, two added in 16 bits.
template <class L>
struct PairDots {
  using Int = typename L::Int;
  static constexpr bool kSignedNeedsOffset = false;
  /// Returns how many vectors of products with quants up to `largest` can be added without
  /// overflow.
  static constexpr int Steps(int largest) { return 32767 / (2 * 127 * largest); }
  static MANYHEAD_INLINE Int Start(Int) { return L::Zero(); }
  static MANYHEAD_INLINE Int Step(Int sum, Int q, Int x) {
    return L::Add16(sum, L::MulPairs8(q, x));
  }
  static MANYHEAD_INLINE Int Finish(Int total, Int sum) {
    return L::Add32(total, L::MulPairs16(sum, L::Set16(1)));
  }
  /// Returns the scale in byte `kByte` of each row's dword, in the form that Scaled uses.
  template <int kByte, bool kSigned>
  static MANYHEAD_INLINE Int Scale(Int words) {
    if constexpr (kSigned)
      return L::template ShiftRightSigned16<8>(SpreadByte<L, kByte, 0x01000100>(words));
    else
      return SpreadByte<L, kByte, 0x00010001>(words);
  }
  static MANYHEAD_INLINE Int Scaled(Int sum, Int scale) { return L::MulPairs16(sum, scale); }
};

/// Computes four products added in 32 bits.
template <class L>
struct QuadDots {
  using Int = typename L::Int;
  static constexpr bool kSignedNeedsOffset = true;
  static constexpr int Steps(int) { return 8; }
  static MANYHEAD_INLINE Int Start(Int total) { return total; }
  static MANYHEAD_INLINE Int Step(Int sum, Int q, Int x) { return L::AddDots(sum, q, x); }
  static MANYHEAD_INLINE Int Finish(Int, Int sum) { return sum; }
  template <int kByte, bool kSigned>
  static MANYHEAD_INLINE Int Scale(Int words) {
    if constexpr (kSigned)
      return L::template ShiftRightSigned32<24>(SpreadByte<L, kByte, 0x01000000>(words));
    else
      return SpreadByte<L, kByte, 0x00000001>(words);
  }
  static MANYHEAD_INLINE Int Scaled(Int sum, Int scale) { return L::Mul32(sum, scale); }
};

}  // namespace
}  // namespace manyhead::kernels
