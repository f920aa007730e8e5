#pragma once

#include "kernels/linear_simd.inl.h"

/// Reads GGUF's low-bit blocks: 32 quants (the numbers before scaling, unsigned unless stated) and
/// the scales of a block. `R` is an integer policy of linear_simd.inl.h.
///
/// Blocks of 32: weight = d * (q - kOffset), or d * q + m.
/// Blocks of 256, sub-blocks of 16: weight = d * scale * (q - kOffset), or d * scale * q - dmin *
/// min. Their scales and mins are kept as 16-bit numbers, those of the even sub-blocks in a row's
/// first lane and of the odd ones in its second, so that group g of 32 finds both at index g.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

struct BlockQ4_0 {
  static constexpr int kBytes = 18, kOffset = 8;
  static constexpr bool kHasMin = false, kSigned = false;
  template <class R>
  static MANYHEAD_INLINE typename R::Int Quants(const std::uint8_t* p, std::int64_t row_bytes) {
    return R::SplitNibbles(R::LoadTwice(p + 2, row_bytes));
  }
};

struct BlockQ4_1 {
  static constexpr int kBytes = 20, kOffset = 0;
  static constexpr bool kHasMin = true, kSigned = false;
  template <class R>
  static MANYHEAD_INLINE typename R::Int Quants(const std::uint8_t* p, std::int64_t row_bytes) {
    return R::SplitNibbles(R::LoadTwice(p + 4, row_bytes));
  }
};

struct BlockQ5_0 {
  static constexpr int kBytes = 22, kOffset = 16;
  static constexpr bool kHasMin = false, kSigned = false;
  template <class R>
  static MANYHEAD_INLINE typename R::Int Quants(const std::uint8_t* p, std::int64_t row_bytes) {
    return R::AddFifthBit(R::SplitNibbles(R::LoadTwice(p + 6, row_bytes)), p + 2, row_bytes);
  }
};

struct BlockQ5_1 {
  static constexpr int kBytes = 24, kOffset = 0;
  static constexpr bool kHasMin = true, kSigned = false;
  template <class R>
  static MANYHEAD_INLINE typename R::Int Quants(const std::uint8_t* p, std::int64_t row_bytes) {
    return R::AddFifthBit(R::SplitNibbles(R::LoadTwice(p + 8, row_bytes)), p + 4, row_bytes);
  }
};

struct BlockQ8_0 {
  static constexpr int kBytes = 34, kOffset = 0;
  static constexpr bool kHasMin = false, kSigned = true;
  template <class R>
  static MANYHEAD_INLINE typename R::Int Quants(const std::uint8_t* p, std::int64_t row_bytes) {
    return R::Load(p + 2, row_bytes);
  }
};

/// Reorders 16 bytes: the even ones, then the odd ones.
inline __m128i EvenThenOdd(__m128i bytes) {
  return _mm_shuffle_epi8(bytes,
                          _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}

template <class R>
struct SubBlockScales {
  typename R::Int scales;
  typename R::Int mins;  ///< only in types that have them
};

struct BlockQ2_K {
  static constexpr int kBytes = 84, kScaleAt = 80, kMinAt = 82, kOffsetLog2 = 0;
  static constexpr bool kHasMin = true;
  template <class R, int kGroup, class At>
  static MANYHEAD_INLINE typename R::Int Quants(At p, std::int64_t row_bytes) {
    const typename R::Int bits = R::Load(p + 16 + 32 * (kGroup / 4), row_bytes);
    return R::And(R::template ShiftRight16<2 * (kGroup % 4)>(bits), R::Set8(3));
  }
  template <class R>
  static MANYHEAD_INLINE SubBlockScales<R> Scales(const std::uint8_t* p, std::int64_t row_bytes) {
    const __m128i low = _mm_set1_epi8(15);
    return {R::PerRow(p, row_bytes,
                      [low](const std::uint8_t* row) {
                        const __m128i scales = _mm_and_si128(Load128(row), low);
                        return _mm256_cvtepu8_epi16(EvenThenOdd(scales));
                      }),
            R::PerRow(p, row_bytes, [low](const std::uint8_t* row) {
              const __m128i mins = _mm_and_si128(_mm_srli_epi16(Load128(row), 4), low);
              return _mm256_cvtepu8_epi16(EvenThenOdd(mins));
            })};
  }
};

struct BlockQ3_K {
  static constexpr int kBytes = 110, kScaleAt = 108, kOffsetLog2 = 2;
  static constexpr bool kHasMin = false;
  template <class R, int kGroup, class At>
  static MANYHEAD_INLINE typename R::Int Quants(At p, std::int64_t row_bytes) {
    const typename R::Int low = R::Load(p + 32 + 32 * (kGroup / 4), row_bytes);
    const typename R::Int high = R::Load(p, row_bytes);
    const typename R::Int third = kGroup < 2 ? R::template ShiftLeft16<(2 - kGroup) & 15>(high)
                                             : R::template ShiftRight16<(kGroup - 2) & 15>(high);
    return R::Or(R::And(R::template ShiftRight16<2 * (kGroup % 4)>(low), R::Set8(3)),
                 R::And(third, R::Set8(4)));
  }
  template <class R>
  static MANYHEAD_INLINE SubBlockScales<R> Scales(const std::uint8_t* p, std::int64_t row_bytes) {
    return {R::PerRow(
                p, row_bytes,
                [](const std::uint8_t* row) {
                  constexpr std::uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
                  constexpr std::uint64_t kHigh = 0x3030303030303030;
                  const std::uint64_t low = LoadU64(row + 96), high = LoadU32(row + 104);
                  // Sub-blocks 0-3, 4-7, 8-11 and 12-15 take bits 0-1, 2-3, 4-5, 6-7 of `high`.
                  const std::uint64_t first = high << 4 | high << 34;
                  const std::uint64_t second = high | (high >> 2) << 32;
                  const __m128i scales =
                      _mm_set_epi64x(static_cast<long long>((low >> 4 & kLow) | (second & kHigh)),
                                     static_cast<long long>((low & kLow) | (first & kHigh)));
                  return _mm256_cvtepi8_epi16(EvenThenOdd(_mm_sub_epi8(scales, _mm_set1_epi8(32))));
                }),
            R::Zero()};
  }
};

/// Reads the eight 6-bit scales and mins of Q4_K and Q5_K in twelve bytes, each for 32 elements.
template <class R>
MANYHEAD_INLINE SubBlockScales<R> ScalesOfEight(const std::uint8_t* p, std::int64_t row_bytes) {
  const typename R::Int both = R::PerRow(p, row_bytes, [](const std::uint8_t* row) {
    const std::uint32_t a = LoadU32(row), b = LoadU32(row + 4), c = LoadU32(row + 8);
    const std::uint32_t scales_high = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    const std::uint32_t mins_high = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    return _mm256_cvtepu8_epi16(
        _mm_setr_epi32(static_cast<int>(a & 0x3f3f3f3f), static_cast<int>(scales_high),
                       static_cast<int>(b & 0x3f3f3f3f), static_cast<int>(mins_high)));
  });
  return {R::DoubleFirstLane(both), R::DoubleSecondLane(both)};
}

struct BlockQ4_K {
  static constexpr int kBytes = 144, kScaleAt = 0, kMinAt = 2, kOffsetLog2 = 0;
  static constexpr bool kHasMin = true;
  template <class R, int kGroup, class At>
  static MANYHEAD_INLINE typename R::Int Quants(At p, std::int64_t row_bytes) {
    const typename R::Int bits = R::Load(p + 16 + 32 * (kGroup / 2), row_bytes);
    return R::And(R::template ShiftRight16<4 * (kGroup % 2)>(bits), R::Set8(15));
  }
  template <class R>
  static MANYHEAD_INLINE SubBlockScales<R> Scales(const std::uint8_t* p, std::int64_t row_bytes) {
    return ScalesOfEight<R>(p + 4, row_bytes);
  }
};

struct BlockQ5_K {
  static constexpr int kBytes = 176, kScaleAt = 0, kMinAt = 2, kOffsetLog2 = 0;
  static constexpr bool kHasMin = true;
  template <class R, int kGroup, class At>
  static MANYHEAD_INLINE typename R::Int Quants(At p, std::int64_t row_bytes) {
    const typename R::Int low = R::Load(p + 48 + 32 * (kGroup / 2), row_bytes);
    const typename R::Int high = R::Load(p + 16, row_bytes);
    const typename R::Int fifth = kGroup < 4 ? R::template ShiftLeft16<(4 - kGroup) & 15>(high)
                                             : R::template ShiftRight16<(kGroup - 4) & 15>(high);
    return R::Or(R::And(R::template ShiftRight16<4 * (kGroup % 2)>(low), R::Set8(15)),
                 R::And(fifth, R::Set8(16)));
  }
  template <class R>
  static MANYHEAD_INLINE SubBlockScales<R> Scales(const std::uint8_t* p, std::int64_t row_bytes) {
    return ScalesOfEight<R>(p + 4, row_bytes);
  }
};

struct BlockQ6_K {
  static constexpr int kBytes = 210, kScaleAt = 208, kOffsetLog2 = 5;
  static constexpr bool kHasMin = false;
  template <class R, int kGroup, class At>
  static MANYHEAD_INLINE typename R::Int Quants(At p, std::int64_t row_bytes) {
    constexpr int kHalf = kGroup / 4, kPart = kGroup % 4;
    const typename R::Int low = R::Load(p + 64 * kHalf + 32 * (kPart % 2), row_bytes);
    const typename R::Int high = R::Load(p + 128 + 32 * kHalf, row_bytes);
    const typename R::Int top = kPart < 2 ? R::template ShiftLeft16<(4 - 2 * kPart) & 15>(high)
                                          : R::template ShiftRight16<(2 * kPart - 4) & 15>(high);
    return R::Or(R::And(R::template ShiftRight16<4 * (kPart / 2)>(low), R::Set8(15)),
                 R::And(top, R::Set8(48)));
  }
  template <class R>
  static MANYHEAD_INLINE SubBlockScales<R> Scales(const std::uint8_t* p, std::int64_t row_bytes) {
    return {R::PerRow(p, row_bytes,
                      [](const std::uint8_t* row) {
                        return _mm256_cvtepi8_epi16(EvenThenOdd(Load128(row + 192)));
                      }),
            R::Zero()};
  }
};

}  // namespace
}  // namespace manyhead::kernels
