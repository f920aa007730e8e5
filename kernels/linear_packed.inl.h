#pragma once

#include "kernels/linear_blocks.inl.h"
#include "kernels/linear_kernels.h"
#include "manyhead/types.h"

/// The product of packed weights with int8 activations: a vector holds four columns of 8 or 16
/// rows, an activation's same four columns are in all of its lanes.
///
/// `L` names the lanes, `Dot` the multiplication: pairs of products in 16 bits (AVX2, AVX-512), or
/// four at once in 32 (VNNI).
///
/// Cost: a vector of weights is unpacked in one to five instructions, then multiplied with one to
/// three for each activation row, so rows are handled as many at a time as leave their sums in
/// registers.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

/// A place in a packed block, moved by bytes of the type's own block.
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

/// In each dword of a vector, byte `kByte` of the dword, placed by the pattern of its four bytes:
/// 1 = there, 0 = zero.
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

/// Products of unsigned quants and signed activations, two added in 16 bits.
template <class L>
struct PairDots {
  using Int = typename L::Int;
  static constexpr bool kSignedNeedsOffset = false;
  /// Vectors whose products with quants up to `largest` can be added before they overflow.
  static constexpr int Steps(int largest) { return 32767 / (2 * 127 * largest); }
  static MANYHEAD_INLINE Int Start(Int) { return L::Zero(); }
  static MANYHEAD_INLINE Int Step(Int sum, Int q, Int x) {
    return L::Add16(sum, L::MulPairs8(q, x));
  }
  static MANYHEAD_INLINE Int Finish(Int total, Int sum) {
    return L::Add32(total, L::MulPairs16(sum, L::Set16(1)));
  }
  /// The scale in byte `kByte` of each row's dword, as Scaled wants it.
  template <int kByte, bool kSigned>
  static MANYHEAD_INLINE Int Scale(Int words) {
    if constexpr (kSigned)
      return L::template ShiftRightSigned16<8>(SpreadByte<L, kByte, 0x01000100>(words));
    else
      return SpreadByte<L, kByte, 0x00010001>(words);
  }
  static MANYHEAD_INLINE Int Scaled(Int sum, Int scale) { return L::MulPairs16(sum, scale); }
};

/// Four products added in 32 bits.
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

// Blocks of 32: vector i of Quants holds columns 4 i to 4 i + 3.

template <int kQuantsAt, class L, int i>
MANYHEAD_INLINE typename L::Int PackedNibbles(PackedAt p) {
  const auto words = L::Load(p + (kQuantsAt + 4 * (i % 4)), 0);
  return L::And(L::template ShiftRight16<i / 4 * 4>(words), L::Set8(15));
}

/// Bit i of every byte, times 16.
template <class L, int i>
MANYHEAD_INLINE typename L::Int PackedFifthBits(PackedAt p) {
  const auto bits = L::Load(p, 0);
  if constexpr (i <= 4)
    return L::And(L::template ShiftLeft16<4 - i>(bits), L::Set8(16));
  else
    return L::And(L::template ShiftRight16<i - 4>(bits), L::Set8(16));
}

struct PackedQ4_0 : BlockQ4_0 {
  static constexpr int kLargest = 15;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return PackedNibbles<2, L, i>(p);
  }
};

struct PackedQ4_1 : BlockQ4_1 {
  static constexpr int kLargest = 15;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return PackedNibbles<4, L, i>(p);
  }
};

struct PackedQ5_0 : BlockQ5_0 {
  static constexpr int kLargest = 31;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Or(PackedNibbles<6, L, i>(p), PackedFifthBits<L, i>(p + 2));
  }
};

struct PackedQ5_1 : BlockQ5_1 {
  static constexpr int kLargest = 31;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Or(PackedNibbles<8, L, i>(p), PackedFifthBits<L, i>(p + 4));
  }
};

struct PackedQ8_0 : BlockQ8_0 {
  static constexpr int kLargest = 128;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Load(p + (2 + 4 * i), 0);
  }
};

/// Rows in `kHalves` vectors of a group: AVX2 needs two.
template <class L>
inline constexpr int kHalves = static_cast<int>(kPackedRows) / L::kLanes;

template <class L>
MANYHEAD_INLINE typename L::Float HalvesAt(PackedAt block, int offset, int half) {
  return L::LoadHalves(block.at + kPackedRows * offset + 2 * L::kLanes * half);
}

template <class L>
MANYHEAD_INLINE PackedAt HalfOf(PackedAt block, int half) {
  return {block.at + 4 * L::kLanes * half};
}

/// What one step adds up: kM activation rows times the vectors of a group.
template <class L, int kM>
struct Tile {
  typename L::Int at[kHalves<L>][kM];

  template <class Fn>
  static MANYHEAD_INLINE void ForEach(Fn&& fn) {
    Unroll<kHalves<L> * kM>(
        [&]<int i>() MANYHEAD_INLINE_LAMBDA { fn.template operator()<i / kM, i % kM>(); });
  }
};

/// One block of 32 of a group, times kM activation rows.
template <class L, class Dot, class Block, int kM>
struct PackedSmall {
  using Int = typename L::Int;
  using Float = typename L::Float;
  static constexpr int kColumns = 32;
  static constexpr bool kBiased = Block::kSigned && Dot::kSignedNeedsOffset;
  static constexpr int kOffset = kBiased ? 128 : Block::kOffset;
  static constexpr bool kFlips = Block::kSigned && !kBiased;

  template <int i>
  static MANYHEAD_INLINE void Step(PackedAt block, const std::int8_t* xq, Tile<L, kM>& sums) {
    Int q[kHalves<L>], magnitude[kHalves<L>];
    Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
      q[half] = Block::template Quants<L, i>(HalfOf<L>(block, half));
      if constexpr (kBiased) q[half] = L::Xor(q[half], L::Set8(0x80));
      magnitude[half] = kFlips ? L::Abs8(q[half]) : q[half];
    });
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
      const Int same = L::Same(xq + 4 * (i * kM + m));
      Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
        sums.at[half][m] = Dot::Step(sums.at[half][m], magnitude[half],
                                     kFlips ? L::FlipSign8(same, q[half]) : same);
      });
    });
  }

  static MANYHEAD_INLINE void AddBlock(PackedAt block, const QuantizedRows& x, std::int64_t b,
                                       Float (&totals)[kHalves<L>][kM]) {
    using Tile = kernels::Tile<L, kM>;
    const std::int8_t* xq = x.q + 32 * kM * b;
    Tile dots;
    Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
      dots.at[half][m] = kOffset == 0 ? L::Zero() : L::Set32(-kOffset * x.sums[b * kM + m]);
    });
    constexpr int kSteps = Dot::Steps(Block::kLargest) < 8 ? Dot::Steps(Block::kLargest) : 8;
    Unroll<8 / kSteps>([&]<int run>() MANYHEAD_INLINE_LAMBDA {
      Tile sums;
      Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
        sums.at[half][m] = Dot::Start(dots.at[half][m]);
      });
      Unroll<kSteps>([&]<int s>()
                         MANYHEAD_INLINE_LAMBDA { Step<run * kSteps + s>(block, xq, sums); });
      Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
        dots.at[half][m] = Dot::Finish(dots.at[half][m], sums.at[half][m]);
      });
    });
    Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
      const std::int64_t at = b * kM + m;
      const Float d = L::Mul(HalvesAt<L>(block, 0, half), L::Set(x.scales[at]));
      Float& total = totals[half][m];
      total = L::Fma(L::ToFloat(dots.at[half][m]), d, total);
      if constexpr (Block::kHasMin)
        total = L::Fma(HalvesAt<L>(block, 2, half), L::Set(x.scaled_sums[at]), total);
    });
  }
};

// Blocks of 256: the scales of their sub-blocks, four to a dword, and where those lie.

template <class L>
struct PackedScales {
  typename L::Int scales[4];
  typename L::Int mins[4];  ///< only of types that have them
};

struct PackedQ2_K : BlockQ2_K {
  static constexpr int kLargest = 3, kSubBlock = 16;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      const auto both = L::Load(p + 4 * w, 0);
      s.scales[w] = L::And(both, L::Set8(15));
      s.mins[w] = L::And(L::template ShiftRight16<4>(both), L::Set8(15));
    });
    return s;
  }
};

struct PackedQ3_K : BlockQ3_K {
  static constexpr int kLargest = 7, kSubBlock = 16;
  static constexpr bool kSignedScales = true;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    const auto high = L::Load(p + 104, 0);
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      const auto low = L::template ShiftRight16<w / 2 * 4>(L::Load(p + (96 + w % 2 * 4), 0));
      const auto top = w < 2 ? L::template ShiftLeft16<(4 - 2 * w) & 15>(high)
                             : L::template ShiftRight16<(2 * w - 4) & 15>(high);
      const auto six = L::Or(L::And(low, L::Set8(15)), L::And(top, L::Set8(48)));
      s.scales[w] = L::Sub8(six, L::Set8(32));
    });
    return s;
  }
};

template <class L>
MANYHEAD_INLINE PackedScales<L> PackedScalesOfEight(PackedAt p) {
  const auto a = L::Load(p, 0), b = L::Load(p + 4, 0), c = L::Load(p + 8, 0);
  const auto six = L::Set8(63), low = L::Set8(15), top = L::Set8(48);
  const auto high = [&](auto nibbles, auto bits) {
    return L::Or(L::And(nibbles, low), L::And(L::template ShiftRight16<2>(bits), top));
  };
  PackedScales<L> s;
  s.scales[0] = L::And(a, six);
  s.scales[1] = high(c, a);
  s.mins[0] = L::And(b, six);
  s.mins[1] = high(L::template ShiftRight16<4>(c), b);
  return s;
}

struct PackedQ4_K : BlockQ4_K {
  static constexpr int kLargest = 15, kSubBlock = 32;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    return PackedScalesOfEight<L>(p + 4);
  }
};

struct PackedQ5_K : BlockQ5_K {
  static constexpr int kLargest = 31, kSubBlock = 32;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    return PackedScalesOfEight<L>(p + 4);
  }
};

struct PackedQ6_K : BlockQ6_K {
  static constexpr int kLargest = 63, kSubBlock = 16;
  static constexpr bool kSignedScales = true;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA { s.scales[w] = L::Load(p + (192 + 4 * w), 0); });
    return s;
  }
};

/// One block of 256 of a group, times kM activation rows.
template <class L, class Dot, class Block, int kM>
struct PackedSuper {
  using Int = typename L::Int;
  using Float = typename L::Float;
  static constexpr int kColumns = 256;
  static constexpr bool kWide = Block::kSubBlock == 32;
  static constexpr int kWords = kWide ? 2 : 4;  // dwords of scales

  /// Four columns from kColumn on.
  template <int kColumn>
  static MANYHEAD_INLINE void Step(PackedAt block, const std::int8_t* xq, Tile<L, kM>& sums) {
    constexpr int kInGroup = kColumn % 32 / 4;
    Int q[kHalves<L>];
    Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
      const PackedAt words = {HalfOf<L>(block, half).at + 4 * kPackedRows * kInGroup};
      q[half] = Block::template Quants<L, kColumn / 32>(words, 0);
    });
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
      const Int same = L::Same(xq + kColumn * kM + 4 * m);
      Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
        sums.at[half][m] = Dot::Step(sums.at[half][m], q[half], same);
      });
    });
  }

  /// Adds sub-block `kIndex`'s dot products times its scale.
  template <int kIndex>
  static MANYHEAD_INLINE void AddSubBlock(PackedAt block,
                                          const PackedScales<L> (&scales)[kHalves<L>],
                                          const std::int8_t* xq, Tile<L, kM>& dots) {
    using Tile = kernels::Tile<L, kM>;
    constexpr int kVectors = Block::kSubBlock / 4, kMost = Dot::Steps(Block::kLargest);
    constexpr int kSteps = kMost < kVectors ? kMost / 2 * 2 : kVectors;
    Int scale[kHalves<L>];
    Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
      scale[half] =
          Dot::template Scale<kIndex % 4, Block::kSignedScales>(scales[half].scales[kIndex / 4]);
    });
    Unroll<kVectors / kSteps>([&]<int run>() MANYHEAD_INLINE_LAMBDA {
      Tile sums;
      Tile::ForEach([&]<int half, int m>()
                        MANYHEAD_INLINE_LAMBDA { sums.at[half][m] = L::Zero(); });
      Unroll<kSteps>([&]<int step>() MANYHEAD_INLINE_LAMBDA {
        Step<kIndex * Block::kSubBlock + 4 * (run * kSteps + step)>(block, xq, sums);
      });
      Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
        dots.at[half][m] = L::Add32(dots.at[half][m], Dot::Scaled(sums.at[half][m], scale[half]));
      });
    });
  }

  /// sum over sub-blocks of their number in `words` times the sum of their activations.
  template <bool kSigned>
  static MANYHEAD_INLINE Int TimesSums(const Int (&words)[4], const std::int16_t* sums) {
    Int total = L::Zero();
    Unroll<kWords>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      Int even, odd;
      if constexpr (kSigned) {
        even = L::template ShiftRightSigned16<8>(L::template ShiftLeft16<8>(words[w]));
        odd = L::template ShiftRightSigned16<8>(words[w]);
      } else {
        even = L::And(words[w], L::Set16(0xff));
        odd = L::template ShiftRight16<8>(words[w]);
      }
      total = L::Add32(total, L::MulPairs16(even, L::Same(sums + 4 * w * kM)));
      total = L::Add32(total, L::MulPairs16(odd, L::Same(sums + (4 * w + 2) * kM)));
    });
    return total;
  }

  static MANYHEAD_INLINE void AddBlock(PackedAt block, const QuantizedRows& x, std::int64_t b,
                                       Float (&totals)[kHalves<L>][kM]) {
    using Tile = kernels::Tile<L, kM>;
    PackedScales<L> s[kHalves<L>];
    Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
      s[half] = Block::template Scales<L>(HalfOf<L>(block, half));
    });
    Tile dots;
    Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA { dots.at[half][m] = L::Zero(); });
    Unroll<256 / Block::kSubBlock>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
      AddSubBlock<i>(block, s, x.q + 256 * kM * b, dots);
    });
    Tile::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
      const std::int16_t* sums =
          kWide ? x.wide_sums + 8 * kM * b + 2 * m : x.pair_sums + 16 * kM * b + 2 * m;
      const Float x_scale = L::Set(x.scales[b * kM + m]);
      const Float d = L::Mul(HalvesAt<L>(block, Block::kScaleAt, half), x_scale);
      Float& total = totals[half][m];
      if constexpr (Block::kHasMin) {
        const Float dmin = L::Mul(HalvesAt<L>(block, Block::kMinAt, half), x_scale);
        total = L::Fma(L::ToFloat(dots.at[half][m]), d, total);
        total = L::Fnma(L::ToFloat(TimesSums<false>(s[half].mins, sums)), dmin, total);
      } else {
        const Int offsets = TimesSums<Block::kSignedScales>(s[half].scales, sums);
        const Int dot =
            L::Sub32(dots.at[half][m], L::template ShiftLeft32<Block::kOffsetLog2>(offsets));
        total = L::Fma(L::ToFloat(dot), d, total);
      }
    });
  }
};

/// Fetches a block ahead of the hardware, which stops at each 4 KiB page.
template <int kBytes>
MANYHEAD_INLINE void PrefetchPacked(PackedAt block) {
  constexpr int kAhead = 8192;
  for (int line = 0; line < kPackedRows * kBytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(block.at) + kAhead + line, _MM_HINT_T1);
}

/// A group times kM activation rows.
template <class L, class Block, class Rows, int kM>
void MultiplyGroup(const PackedTask& task, std::int64_t r) {
  using Float = typename L::Float;
  PackedAt block = {reinterpret_cast<const std::uint8_t*>(task.weights) +
                    r / kPackedRows * task.group_bytes};
  Float totals[kHalves<L>][kM];
  Tile<L, kM>::ForEach([&]<int half, int m>()
                           MANYHEAD_INLINE_LAMBDA { totals[half][m] = L::ZeroFloat(); });
  for (std::int64_t b = 0; b < task.cols / Rows::kColumns; ++b, block = block + Block::kBytes) {
    PrefetchPacked<Block::kBytes>(block);
    Rows::AddBlock(block, task.x, b, totals);
  }
  float bias[kPackedRows] = {}, sums[kPackedRows];
  const std::int64_t rows = task.rows - r < kPackedRows ? task.rows - r : kPackedRows;
  const auto bytes = static_cast<std::size_t>(rows) * sizeof(float);
  if (task.bias != nullptr) __builtin_memcpy(bias, task.bias + r, bytes);
  Tile<L, kM>::ForEach([&]<int half, int m>() MANYHEAD_INLINE_LAMBDA {
    totals[half][m] = L::Add(totals[half][m], L::LoadFloats(bias + L::kLanes * half));
  });
  Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
    float* y = task.y + m * task.y_stride + r;
    float* out = rows == kPackedRows ? y : sums;
    Unroll<kHalves<L>>([&]<int half>() MANYHEAD_INLINE_LAMBDA {
      L::StoreFloats(out + L::kLanes * half, totals[half][m]);
    });
    if (rows < kPackedRows) __builtin_memcpy(y, sums, bytes);
  });
}

template <class L, class Dot, class Block, template <class, class, class, int> class Rows>
void MultiplyPacked(const PackedTask& task) {
  const auto run = [&]<int kM>() MANYHEAD_INLINE_LAMBDA {
    for (std::int64_t r = 0; r < task.rows; r += kPackedRows)
      MultiplyGroup<L, Block, Rows<L, Dot, Block, kM>, kM>(task, r);
  };
  switch (task.M) {
    case 1:
      return run.template operator()<1>();
    case 4:
      return run.template operator()<4>();
    default:
      if constexpr (L::kMostActivations == 8) run.template operator()<8>();
  }
}

template <class L, class Dot>
constexpr PackedKernels MakePackedKernels() {
  PackedKernels table = {};
  table.most_activations = L::kMostActivations;
  const auto at = [&table](WeightType type) -> auto& {
    return table.multiply[static_cast<int>(type)];
  };
  at(WeightType::kQ4_0) = &MultiplyPacked<L, Dot, PackedQ4_0, PackedSmall>;
  at(WeightType::kQ4_1) = &MultiplyPacked<L, Dot, PackedQ4_1, PackedSmall>;
  at(WeightType::kQ5_0) = &MultiplyPacked<L, Dot, PackedQ5_0, PackedSmall>;
  at(WeightType::kQ5_1) = &MultiplyPacked<L, Dot, PackedQ5_1, PackedSmall>;
  at(WeightType::kQ8_0) = &MultiplyPacked<L, Dot, PackedQ8_0, PackedSmall>;
  at(WeightType::kQ2_K) = &MultiplyPacked<L, Dot, PackedQ2_K, PackedSuper>;
  at(WeightType::kQ3_K) = &MultiplyPacked<L, Dot, PackedQ3_K, PackedSuper>;
  at(WeightType::kQ4_K) = &MultiplyPacked<L, Dot, PackedQ4_K, PackedSuper>;
  at(WeightType::kQ5_K) = &MultiplyPacked<L, Dot, PackedQ5_K, PackedSuper>;
  at(WeightType::kQ6_K) = &MultiplyPacked<L, Dot, PackedQ6_K, PackedSuper>;
  return table;
}

}  // namespace
}  // namespace manyhead::kernels
