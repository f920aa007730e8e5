#include <immintrin.h>

#include "kernels/kernel_table.h"
#include "kernels/linear_packed.inl.h"
#include "kernels/x86/tile_config.inl.h"

/// Computes the int8 product of packed weights with many activation rows in AMX tiles: the same
/// integers and the same float operations in the same order as kernels/linear_packed.inl.h, so
/// equal bits.
///
/// Symbols: M activation rows, N = 32 weight rows of a task (two groups of 16), C columns.
///
/// A tile multiplication takes 16 cycles for 16 activation rows x 16 weight rows x 64 columns:
/// 1,024 multiply-adds a cycle. The other instructions must not take longer, so none of them are
/// per sub-block:
///
/// * Blocks of 256. A weight's quant times its sub-block's integer scale, w = (q - offset) * scale,
///   has up to 14 bits. It is split once per task into two planes of int8, w = 128 * high + low,
///   and both are multiplied over the whole block: exact, at 512 multiply-adds a cycle. For each
///   sum of 256 columns about 13 vector instructions then apply the block's float scale and
///   minimums, for 16 weight rows at once: 416 for 32 activation rows, beside 256 cycles of tiles.
///   They work on the tiles of the previous step, so that both run at the same time.
/// * Blocks of 32 have a float scale each: a tile takes one block (half a tile of columns, 512
///   multiply-adds a cycle), and three instructions per 16 sums follow, which bounds the product at
///   about 270 multiply-adds a cycle.
///
/// Traffic for 256 columns: the unpacked weights, N * 256 * 2 = 16 KiB, stay in L1; activations
/// (256 bytes a row) and running totals (4 N bytes a row, read and written) come from L2, which for
/// 32 rows and both groups is 16 KiB in at least 512 cycles. Unpacking takes about 800 instructions
/// a group, which 64 activation rows outweigh.

namespace manyhead::kernels::amx {
namespace {  // NOLINT(google-build-namespaces)

using Lanes = SixteenLanes;

constexpr int kColumns = 256;  ///< columns of a step
constexpr int kGroups = 2;     ///< groups of 16 weight rows in a task
constexpr int kPairRows = 32;  ///< activation rows of a step: two tiles
constexpr int kPlaneBytes = kColumns * static_cast<int>(kPackedRows);
constexpr int kSums = 16 * 16;  ///< sums of a tile

constexpr TileConfig kConfig64 = ConfigFor(64), kConfig32 = ConfigFor(32);

/// The memory of one thread for a task.
struct alignas(64) Scratch {
  std::int8_t planes[kGroups][2][kPlaneBytes];  ///< low and high, [64 quads of columns][16 rows][4]
  std::int32_t sums[2][4][kSums];               ///< sums of this step and the previous one
};

// Blocks of 256.

/// The scales that the end of a step needs from a group's block.
template <class Block>
struct BlockScales {
  static constexpr int kWords = Block::kSubBlock == 32 ? 2 : 4;
  __m512 d, dmin;
  __m512i mins[2 * kWords];  ///< 16-bit, in pairs: the even and the odd ones of each word

  explicit BlockScales(PackedAt block, const PackedScales<Lanes>& scales) {
    d = HalvesAt<Lanes>(block, Block::kScaleAt, 0);
    if constexpr (Block::kHasMin) {
      dmin = HalvesAt<Lanes>(block, Block::kMinAt, 0);
      Unroll<kWords>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
        mins[2 * w] = _mm512_and_si512(scales.mins[w], _mm512_set1_epi16(0xff));
        mins[2 * w + 1] = _mm512_srli_epi16(scales.mins[w], 8);
      });
    }
  }
};

/// Writes the two planes of a group's block.
template <class Block>
void SplitPlanes(PackedAt block, const PackedScales<Lanes>& scales, std::int8_t* low,
                 std::int8_t* high) {
  const __m512i bytes = _mm512_set1_epi16(0xff), seven = _mm512_set1_epi16(127);
  [[maybe_unused]] const __m512i offset =
      _mm512_set1_epi16(Block::kOffsetLog2 == 0 ? 0 : 1 << Block::kOffsetLog2);
  Unroll<8>([&]<int group>() MANYHEAD_INLINE_LAMBDA {
    constexpr int kSub = 32 / Block::kSubBlock;  // sub-blocks in these 32 columns
    Unroll<kSub>([&]<int s>() MANYHEAD_INLINE_LAMBDA {
      constexpr int kIndex = group * kSub + s;
      const __m512i scale = PairDots<Lanes>::template Scale<kIndex % 4, Block::kSignedScales>(
          scales.scales[kIndex / 4]);
      for (int i = s * 8 / kSub; i < (s + 1) * 8 / kSub; ++i) {
        const PackedAt words = {block.at + 4 * kPackedRows * i};
        const __m512i q = Block::template Quants<Lanes, group>(words, 0);
        __m512i even = _mm512_and_si512(q, bytes), odd = _mm512_srli_epi16(q, 8);
        if constexpr (Block::kOffsetLog2 != 0) {
          even = _mm512_sub_epi16(even, offset);
          odd = _mm512_sub_epi16(odd, offset);
        }
        even = _mm512_mullo_epi16(even, scale);
        odd = _mm512_mullo_epi16(odd, scale);
        const int at = (group * 8 + i) * 64;
        _mm512_store_si512(low + at,
                           _mm512_or_si512(_mm512_and_si512(even, seven),
                                           _mm512_slli_epi16(_mm512_and_si512(odd, seven), 8)));
        _mm512_store_si512(high + at,
                           _mm512_or_si512(_mm512_and_si512(_mm512_srai_epi16(even, 7), bytes),
                                           _mm512_slli_epi16(_mm512_srai_epi16(odd, 7), 8)));
      }
    });
  });
}

/// The destination of a step's results and their scales.
struct StepOutput {
  const std::int32_t* sums;  ///< low of rows 0 to 15 and 16 to 31, then high
  const float* x_scales;     ///< scales of the first row's block
  const std::int16_t* x_sums;
  std::int64_t scales_stride, sums_stride;
  float* totals;
  std::int64_t totals_stride;
};

/// Adds row m's sums of a block, scaled, to its totals.
template <class Block>
MANYHEAD_INLINE void EndRow(const StepOutput& end, const BlockScales<Block>& scales, int m) {
  const std::int32_t* sums = end.sums + m * 16;
  const __m512i dots = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(sums + 2 * kSums), 7),
                                        _mm512_load_si512(sums));
  const __m512 x_scale = _mm512_set1_ps(end.x_scales[m * end.scales_stride]);
  float* out = end.totals + m * end.totals_stride;
  __m512 total = _mm512_loadu_ps(out);
  total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_mul_ps(scales.d, x_scale), total);
  if constexpr (Block::kHasMin) {
    const std::int16_t* x_sums = end.x_sums + m * end.sums_stride;
    __m512i offsets = _mm512_setzero_si512();
    Unroll<2 * BlockScales<Block>::kWords>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      offsets = _mm512_dpwssd_epi32(offsets, scales.mins[w], Lanes::Same(x_sums + 2 * w));
    });
    total =
        _mm512_fnmadd_ps(_mm512_cvtepi32_ps(offsets), _mm512_mul_ps(scales.dmin, x_scale), total);
  }
  _mm512_storeu_ps(out, total);
}

/// Multiplies 32 activation rows with a group's planes and meanwhile finishes the previous step.
template <class Block>
void SuperStep(const std::int8_t* x, std::int64_t stride, const std::int8_t* planes,
               std::int32_t* sums, const StepOutput& before, const BlockScales<Block>& scales,
               bool has_before) {
  const std::int8_t *low = planes, *high = planes + kPlaneBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < kColumns / 64; ++k) {
    _tile_loadd(4, x + 64 * k, stride);
    _tile_loadd(6, low + 1024 * k, 64);
    _tile_loadd(5, x + 16 * stride + 64 * k, stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, high + 1024 * k, 64);
    _tile_dpbssd(1, 5, 6);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
    if (has_before)
      for (int m = 8 * k; m < 8 * k + 8; ++m) EndRow<Block>(before, scales, m);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kSums, 64);
  _tile_stored(2, sums + 2 * kSums, 64);
  _tile_stored(3, sums + 3 * kSums, 64);
}

/// Multiplies all activation rows with one block of 256 columns of the task's groups.
template <class Block>
void SuperBlock(const TileInt8Task& task, std::int64_t b, int groups, Scratch& scratch) {
  const QuantizedRows& x = task.x;
  PackedAt blocks[kGroups];
  for (int g = 0; g < groups; ++g)
    blocks[g] = {reinterpret_cast<const std::uint8_t*>(task.weights) + g * task.group_bytes +
                 b * Block::kBytes * kPackedRows};
  const PackedScales<Lanes> first = Block::template Scales<Lanes>(blocks[0]),
                            second = Block::template Scales<Lanes>(blocks[groups - 1]);
  for (int g = 0; g < groups; ++g)
    SplitPlanes<Block>(blocks[g], g == 0 ? first : second, scratch.planes[g][0],
                       scratch.planes[g][1]);
  const BlockScales<Block> scales[kGroups] = {BlockScales<Block>(blocks[0], first),
                                              BlockScales<Block>(blocks[groups - 1], second)};
  constexpr bool kWide = Block::kSubBlock == 32;
  const std::int64_t steps = (task.M + kPairRows - 1) / kPairRows * groups;
  StepOutput before = {};
  int before_group = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t m = step / groups * kPairRows;
    const int g = static_cast<int>(step % groups);
    std::int32_t* sums = scratch.sums[step % 2][0];
    SuperStep<Block>(x.q + m * x.stride + kColumns * b, x.stride, scratch.planes[g][0], sums,
                     before, scales[before_group], step > 0);
    before = {.sums = sums,
              .x_scales = x.scales + m * (x.stride / 32) + b,
              .x_sums = kWide ? x.wide_sums + m * (x.stride / 32) + 8 * b
                              : x.pair_sums + m * (x.stride / 16) + 16 * b,
              .scales_stride = x.stride / 32,
              .sums_stride = kWide ? x.stride / 32 : x.stride / 16,
              .totals = task.totals + m * 32 + 16 * g,
              .totals_stride = 32};
    before_group = g;
  }
  for (int m = 0; m < kPairRows; ++m) EndRow<Block>(before, scales[before_group], m);
}

// Blocks of 32.

/// Writes the quants of a group's block as one plane, with the offset subtracted.
template <class Block>
void SmallPlane(PackedAt block, std::int8_t* plane) {
  Unroll<8>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
    __m512i q = Block::template Quants<Lanes, i>(block);
    if constexpr (Block::kOffset != 0) q = _mm512_sub_epi8(q, _mm512_set1_epi8(Block::kOffset));
    _mm512_store_si512(plane + 64 * i, q);
  });
}

/// The float scales of the blocks of a step.
struct SmallScales {
  __m512 d[8], m[8];
};

#define MANYHEAD_MULTIPLY_AND_STORE(tile, sums) \
  [&] {                                         \
    _tile_zero(tile);                           \
    _tile_dpbssd(tile, 4, 6);                   \
    _tile_stored(tile, sums, 64);               \
  }()

/// Multiplies 16 activation rows with `count` blocks of a group. `sums` must hold four tiles.
template <class Block>
void SmallRows(const QuantizedRows& x, std::int64_t m, std::int64_t b, int count,
               const std::int8_t* plane, const SmallScales& scales, std::int32_t* sums,
               float* totals) {
  const std::int8_t* q = x.q + m * x.stride + 32 * b;
  const float* x_scales = x.scales + m * (x.stride / 32) + b;
  const float* x_sums = x.scaled_sums + m * (x.stride / 32) + b;
  __m512 total[16];
  Unroll<16>([&]<int i>() MANYHEAD_INLINE_LAMBDA { total[i] = _mm512_loadu_ps(totals + 32 * i); });
  const auto multiply = [&](int j) MANYHEAD_INLINE_LAMBDA {
    const std::int8_t *rows = q + 32 * j, *weights = plane + 512 * j;
    std::int32_t* dots = sums + j % 4 * kSums;
    _tile_loadd(4, rows, x.stride);
    _tile_loadd(6, weights, 64);
    switch (j % 4) {  // the number of a tile is part of the instruction
      case 0:
        return MANYHEAD_MULTIPLY_AND_STORE(0, dots);
      case 1:
        return MANYHEAD_MULTIPLY_AND_STORE(1, dots);
      case 2:
        return MANYHEAD_MULTIPLY_AND_STORE(2, dots);
      default:
        return MANYHEAD_MULTIPLY_AND_STORE(3, dots);
    }
  };
  const auto add = [&](int j) MANYHEAD_INLINE_LAMBDA {
    const std::int32_t* dots = sums + j % 4 * kSums;
    Unroll<16>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
      const std::int64_t at = i * (x.stride / 32) + j;
      const __m512 d = _mm512_mul_ps(scales.d[j], _mm512_set1_ps(x_scales[at]));
      total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dots + 16 * i)), d, total[i]);
      if constexpr (Block::kHasMin)
        total[i] = _mm512_fmadd_ps(scales.m[j], _mm512_set1_ps(x_sums[at]), total[i]);
    });
  };
  // Multiplication runs two tiles ahead of addition, so that stored sums are ready when they are
  // read.
  for (int j = 0; j < count + 2; ++j) {
    if (j < count) multiply(j);
    if (j >= 2) add(j - 2);
  }
  Unroll<16>([&]<int i>() MANYHEAD_INLINE_LAMBDA { _mm512_storeu_ps(totals + 32 * i, total[i]); });
}

/// Multiplies all activation rows with up to 8 blocks of 32 columns of the task's groups.
template <class Block>
void SmallBlocks(const TileInt8Task& task, std::int64_t b, int groups, Scratch& scratch) {
  const std::int64_t left = task.cols / 32 - b;
  const int count = static_cast<int>(left < 8 ? left : 8);
  SmallScales scales[kGroups];
  for (int g = 0; g < groups; ++g) {
    PackedAt block = {reinterpret_cast<const std::uint8_t*>(task.weights) + g * task.group_bytes +
                      b * Block::kBytes * kPackedRows};
    for (int j = 0; j < count; ++j, block = block + Block::kBytes) {
      SmallPlane<Block>(block, scratch.planes[g][0] + 512 * j);
      scales[g].d[j] = HalvesAt<Lanes>(block, 0, 0);
      if constexpr (Block::kHasMin) scales[g].m[j] = HalvesAt<Lanes>(block, 2, 0);
    }
  }
  for (std::int64_t m = 0; m < task.M; m += 16)
    for (int g = 0; g < groups; ++g)
      SmallRows<Block>(task.x, m, b, count, scratch.planes[g][0], scales[g], scratch.sums[0][0],
                       task.totals + m * 32 + 16 * g);
}

/// Computes y = totals + bias.
void StoreTotals(const TileInt8Task& task) {
  for (std::int64_t r = 0; r < task.rows; r += 16) {
    const std::int64_t left = task.rows - r;
    const auto lanes = static_cast<__mmask16>(left >= 16 ? 0xffff : (1U << left) - 1U);
    const __m512 bias =
        task.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, task.bias + r);
    for (std::int64_t m = 0; m < task.M; ++m)
      _mm512_mask_storeu_ps(task.y + m * task.y_stride + r, lanes,
                            _mm512_add_ps(_mm512_loadu_ps(task.totals + 32 * m + r), bias));
  }
}

template <class Block, bool kSuper>
void Multiply(const TileInt8Task& task) {
  Scratch scratch;
  const int groups = task.rows > kPackedRows ? 2 : 1;
  const std::int64_t rows = (task.M + kPairRows - 1) / kPairRows * kPairRows;
  for (std::int64_t i = 0; i < rows * 32; i += 16)
    _mm512_storeu_ps(task.totals + i, _mm512_setzero_ps());
  _tile_loadconfig(kSuper ? &kConfig64 : &kConfig32);
  if constexpr (kSuper)
    for (std::int64_t b = 0; b < task.cols / kColumns; ++b)
      SuperBlock<Block>(task, b, groups, scratch);
  else
    for (std::int64_t b = 0; b < task.cols / 32; b += 8)
      SmallBlocks<Block>(task, b, groups, scratch);
  _tile_release();
  StoreTotals(task);
}

constexpr TileInt8Kernels MakeKernels() {
  TileInt8Kernels table = {};
  const auto at = [&table](WeightType type) -> auto& {
    return table.multiply[static_cast<int>(type)];
  };
  at(WeightType::kQ4_0) = &Multiply<PackedQ4_0, false>;
  at(WeightType::kQ4_1) = &Multiply<PackedQ4_1, false>;
  at(WeightType::kQ5_0) = &Multiply<PackedQ5_0, false>;
  at(WeightType::kQ5_1) = &Multiply<PackedQ5_1, false>;
  at(WeightType::kQ8_0) = &Multiply<PackedQ8_0, false>;
  at(WeightType::kQ2_K) = &Multiply<PackedQ2_K, true>;
  at(WeightType::kQ3_K) = &Multiply<PackedQ3_K, true>;
  at(WeightType::kQ4_K) = &Multiply<PackedQ4_K, true>;
  at(WeightType::kQ5_K) = &Multiply<PackedQ5_K, true>;
  at(WeightType::kQ6_K) = &Multiply<PackedQ6_K, true>;
  return table;
}

}  // namespace

constinit const TileInt8Kernels kTilesInt8 = MakeKernels();

}  // namespace manyhead::kernels::amx
