#pragma once

#include "kernels/packed_blocks.inl.h"
#include "manyhead/types.h"

/// Computes the product of packed weights with int8 activations.
///
/// Symbols
///   C      columns
///   M      activation rows that are multiplied at once: 1, 4, or 8 with AVX-512
///   H      vectors that hold one number of each of a group's 16 rows: 2 with AVX2, 1 with AVX-512
///   bits   a weight's, scales included: 4.5 for Q4_K
///   u      instructions that unpack a vector of weights: 1 (Q8_0) to 5 (Q3_K)
///   d      instructions that multiply and add one: 1 with VNNI, else 2
///
/// A step handles four columns of 16 rows: it loads and unpacks H vectors, and multiplies each with
/// the same four columns of M activation rows, which a load repeats in all lanes.
///
/// Bytes per step  16 * 4 * bits / 8 of weights, which are read once for M rows, and 4 * M of
///   activations. All activations of the M rows, C * M bytes, are read again for each group, so
///   they should stay in the first or second cache. One row reads as many bytes of weights as M do:
///   with M = 1 and weights that no cache holds, memory limits the speed, with M = 8 the
///   multiplications.
/// Operations per step  H * u + M * (1 + H * d) instructions for 64 * M multiply-adds. With M = 8
///   the unpacking is shared by so many rows that it is less than half of a step.
/// Registers  H * M integer sums of a sub-block, as many of the block, as many f32 totals, and H
///   vectors of weights. Of these only the first change in every step, so they must fit: 8 of 16
///   registers with AVX2, 8 of 32 with AVX-512. The others may move to the stack between
///   sub-blocks.
///
/// A block is straight-line code. Its loops over rows and halves are unrolled by a pragma rather
/// than by templates, which take five times as long to compile; a loop that remains in the machine
/// code costs 2 to 10 % of the speed.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

/// Number of vectors for the rows of a group: AVX2 needs two.
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

/// One vector for each half of a group's rows and each of kM activation rows.
template <class L, int kM>
struct Tile {
  typename L::Int at[kHalves<L>][kM];

  /// Calls fn(half, m), unrolled so that the array stays in registers.
  template <class Fn>
  static MANYHEAD_INLINE void ForEach(Fn&& fn) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half)
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) fn(half, m);
  }
};

/// Multiplies one block of 32 of a group with kM activation rows.
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
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half) {
      q[half] = Block::template Quants<L, i>(HalfOf<L>(block, half));
      if constexpr (kBiased) q[half] = L::Xor(q[half], L::Set8(0x80));
      magnitude[half] = kFlips ? L::Abs8(q[half]) : q[half];
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const Int same = L::Same(xq + 4 * (i * kM + m));
#pragma GCC unroll 2
      for (int half = 0; half < kHalves<L>; ++half)
        sums.at[half][m] = Dot::Step(sums.at[half][m], magnitude[half],
                                     kFlips ? L::FlipSign8(same, q[half]) : same);
    }
  }

  static MANYHEAD_INLINE void AddBlock(PackedAt block, const QuantizedRows& x, std::int64_t b,
                                       Float (&totals)[kHalves<L>][kM]) {
    using Tile = kernels::Tile<L, kM>;
    const std::int8_t* xq = x.q + 32 * kM * b;
    Tile dots;
    Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
      dots.at[half][m] = kOffset == 0 ? L::Zero() : L::Set32(-kOffset * x.sums[b * kM + m]);
    });
    constexpr int kSteps = Dot::Steps(Block::kLargest) < 8 ? Dot::Steps(Block::kLargest) : 8;
    Unroll<8 / kSteps>([&]<int run>() MANYHEAD_INLINE_LAMBDA {
      Tile sums;
      Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
        sums.at[half][m] = Dot::Start(dots.at[half][m]);
      });
      Unroll<kSteps>([&]<int s>()
                         MANYHEAD_INLINE_LAMBDA { Step<run * kSteps + s>(block, xq, sums); });
      Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
        dots.at[half][m] = Dot::Finish(dots.at[half][m], sums.at[half][m]);
      });
    });
    Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
      const std::int64_t at = b * kM + m;
      const Float d = L::Mul(HalvesAt<L>(block, 0, half), L::Set(x.scales[at]));
      Float& total = totals[half][m];
      total = L::Fma(L::ToFloat(dots.at[half][m]), d, total);
      if constexpr (Block::kHasMin)
        total = L::Fma(HalvesAt<L>(block, 2, half), L::Set(x.scaled_sums[at]), total);
    });
  }
};

/// Multiplies one block of 256 of a group with kM activation rows.
///
/// A block has eight groups of 32 columns, each of eight words of four columns. The position of a
/// group's quants in a word differs from group to group, so groups are unrolled as templates; that
/// of its words does not, so words are a loop.
template <class L, class Dot, class Block, int kM>
struct PackedSuper {
  using Int = typename L::Int;
  using Float = typename L::Float;
  static constexpr int kColumns = 256;
  static constexpr bool kWide = Block::kSubBlock == 32;
  static constexpr int kWords = kWide ? 2 : 4;  // dwords of scales

  /// Adds the products of group `kGroup`'s four columns from 4 * `word` on.
  template <int kGroup>
  static MANYHEAD_INLINE void Step(PackedAt block, const std::int8_t* xq, int word,
                                   Tile<L, kM>& sums) {
    Int q[kHalves<L>];
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half) {
      const PackedAt words = HalfOf<L>(block, half) + 4 * word;
      q[half] = Block::template Quants<L, kGroup>(words, 0);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const Int same = L::Same(xq + (32 * kGroup + 4 * word) * kM + 4 * m);
#pragma GCC unroll 2
      for (int half = 0; half < kHalves<L>; ++half)
        sums.at[half][m] = Dot::Step(sums.at[half][m], q[half], same);
    }
  }

  /// Adds sub-block `kIndex`'s dot products times its scale.
  template <int kIndex>
  static MANYHEAD_INLINE void AddSubBlock(PackedAt block, const std::int8_t* xq,
                                          const PackedScales<L> (&scales)[kHalves<L>],
                                          Tile<L, kM>& dots) {
    using Tile = kernels::Tile<L, kM>;
    constexpr int kCount = Block::kSubBlock / 4, kMost = Dot::Steps(Block::kLargest);
    constexpr int kSteps = kMost < kCount ? kMost / 2 * 2 : kCount;
    constexpr int kGroup = kIndex * kCount / 8, kFirstWord = kIndex * kCount % 8;
    Int scale[kHalves<L>];
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half)
      scale[half] =
          Dot::template Scale<kIndex % 4, Block::kSignedScales>(scales[half].scales[kIndex / 4]);
#pragma GCC unroll 8
    for (int run = 0; run < kCount; run += kSteps) {
      Tile sums;
      Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA { sums.at[half][m] = L::Zero(); });
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step)
        Step<kGroup>(block, xq, kFirstWord + run + step, sums);
      Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
        dots.at[half][m] = L::Add32(dots.at[half][m], Dot::Scaled(sums.at[half][m], scale[half]));
      });
    }
  }

  /// Computes the sum over sub-blocks of their number in `words` times the sum of their
  /// activations.
  template <bool kSigned>
  static MANYHEAD_INLINE Int TimesSums(const Int (&words)[4], const std::int16_t* sums) {
    Int total = L::Zero();
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) {
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
    }
    return total;
  }

  static MANYHEAD_INLINE void AddBlock(PackedAt block, const QuantizedRows& x, std::int64_t b,
                                       Float (&totals)[kHalves<L>][kM]) {
    using Tile = kernels::Tile<L, kM>;
    PackedScales<L> s[kHalves<L>];
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half)
      s[half] = Block::template Scales<L>(HalfOf<L>(block, half));
    Tile dots;
    Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA { dots.at[half][m] = L::Zero(); });
    Unroll<256 / Block::kSubBlock>([&]<int kIndex>() MANYHEAD_INLINE_LAMBDA {
      AddSubBlock<kIndex>(block, x.q + 256 * kM * b, s, dots);
    });
    Tile::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
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

/// Prefetches a block ahead of the hardware, which stops at each 4 KiB page.
template <int kBytes>
MANYHEAD_INLINE void PrefetchPacked(PackedAt block) {
  constexpr int kPrefetchBytes = 8192;
  for (int line = 0; line < kPackedRows * kBytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(block.at) + kPrefetchBytes + line, _MM_HINT_T1);
}

/// Multiplies a group with kM activation rows.
template <class L, class Block, class Rows, int kM>
void MultiplyGroup(const PackedTask& task, std::int64_t r) {
  using Float = typename L::Float;
  PackedAt block = {reinterpret_cast<const std::uint8_t*>(task.weights) +
                    r / kPackedRows * task.group_bytes};
  Float totals[kHalves<L>][kM];
  Tile<L, kM>::ForEach([&](int half, int m)
                           MANYHEAD_INLINE_LAMBDA { totals[half][m] = L::ZeroFloat(); });
  for (std::int64_t b = 0; b < task.cols / Rows::kColumns; ++b, block = block + Block::kBytes) {
    PrefetchPacked<Block::kBytes>(block);
    Rows::AddBlock(block, task.x, b, totals);
  }
  float bias[kPackedRows] = {}, sums[kPackedRows];
  const std::int64_t rows = task.rows - r < kPackedRows ? task.rows - r : kPackedRows;
  const auto bytes = static_cast<std::size_t>(rows) * sizeof(float);
  if (task.bias != nullptr) __builtin_memcpy(bias, task.bias + r, bytes);
  Tile<L, kM>::ForEach([&](int half, int m) MANYHEAD_INLINE_LAMBDA {
    totals[half][m] = L::Add(totals[half][m], L::LoadFloats(bias + L::kLanes * half));
  });
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
    float* y = task.y + m * task.y_stride + r;
    float* out = rows == kPackedRows ? y : sums;
#pragma GCC unroll 2
    for (int half = 0; half < kHalves<L>; ++half)
      L::StoreFloats(out + L::kLanes * half, totals[half][m]);
    if (rows < kPackedRows) __builtin_memcpy(y, sums, bytes);
  }
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
