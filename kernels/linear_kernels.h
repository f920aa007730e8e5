#pragma once

#include <cstddef>
#include <cstdint>

/// Declares products with weights as GGUF stores them: rows of blocks, read in place.

namespace manyhead::kernels {

/// Says which activations the fast product of a weight type reads.
enum class ActivationBlock : std::uint8_t {
  kF32,   ///< f32
  kQ32,   ///< int8, a scale for each 32
  kQ256,  ///< int8, a scale for each 256
};

/// Activation rows rounded to int8: x[c] ~ scale * q[c], q in [-127, 127]. A block with a value
/// that is not finite has scale NaN, one without a value above 2^-100 has scale 0.
struct QuantizedRows {
  std::int8_t* q;           ///< row stride `stride`
  float* scales;            ///< one per 32 or 256, row stride `stride` / 32
  float* scaled_sums;       ///< kQ32: scale * sum of q, likewise
  std::int16_t* half_sums;  ///< kQ256: sums of 16; per block the 8 even ones, then the 8 odd ones;
                            ///< row stride `stride` / 16
  std::int32_t* sums;       ///< kQ32: sum of q, laid out as the scales
  std::int16_t* pair_sums;  ///< kQ256: per block the sums of 16 in the order 0 2 1 3 4 6 5 7 ..,
                            ///< row stride `stride` / 16
  std::int16_t* wide_sums;  ///< kQ256: per block the sums of 32 in that order, row stride
                            ///< `stride` / 32
  std::int64_t stride;      ///< elements, a multiple of 256
};

/// y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r] for r in [0, rows), m in [0, M).
///
/// Each output is summed in an order that depends on cols alone.
struct MatvecTask {
  const std::byte* weights;  ///< rows, dense
  std::int64_t row_bytes;
  std::int64_t rows;
  std::int64_t cols;
  const float* x;  ///< [M, cols], row stride `x_stride`; the exact product reads these
  std::int64_t x_stride;
  QuantizedRows xq;  ///< the fast product reads these
  std::int64_t M;
  float* y;  ///< row stride `y_stride`
  std::int64_t y_stride;
  const float* bias;  ///< null = 0
};

/// Weights packed for the int8 product: kPackedRows rows side by side, so that a vector holds the
/// same columns of all of them and nothing is added across lanes.
///
/// A group is the rows' first blocks, then their second ones, and so on. In a block every field of
/// n bytes at offset o of the type's own block has 16 n bytes at offset 16 o: a 16-bit field as 16
/// numbers, any other as its first 4 bytes of every row, then its next 4. Only the fifth bits of
/// Q5_0 and Q5_1 are also rearranged: bit i of byte k is column 4 i + k's.
inline constexpr std::int64_t kPackedRows = 16;

/// y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r] with x rounded to int8, r in [0, rows).
///
/// Activations of 4 or 8 rows are interleaved: where one row has q, scales and sums one after
/// another, interleaved rows have the first of each row in turn, then the next of each row; q and
/// the sums of kQ256 are interleaved four bytes at a time. Strides are ignored.
///
/// Integer parts are exact and blocks are added in the order of columns: the bits are equal for
/// every M and every instruction set.
struct PackedTask {
  const std::byte* weights;  ///< groups, `group_bytes` apart
  std::int64_t group_bytes;
  std::int64_t rows;  ///< the last group may have fewer than kPackedRows
  std::int64_t cols;
  QuantizedRows x;
  std::int64_t M;  ///< 1, 4 or 8, not above `most_activations`
  float* y;        ///< row stride `y_stride`
  std::int64_t y_stride;
  const float* bias;  ///< null = 0
};

struct LinearTypeKernels {
  /// Computes out[i] = the number that element i of dense blocks stands for, i in [0, n), n whole
  /// blocks.
  void (*widen)(const std::byte* blocks, std::int64_t n, float* out);
  void (*matvec_exact)(const MatvecTask& task);
  void (*matvec_fast)(const MatvecTask& task);
  ActivationBlock activations;  ///< activations that matvec_fast reads
};

/// Products of many rows in tiles of bf16, where the CPU has a unit for them.
///
/// Weights are the rows of the left matrix, in their order in memory; activations are packed once
/// into the right one; so a tile of the result is transposed: [weight row][activation row].
inline constexpr std::int64_t kTileRows = 16;   ///< rows of weights, and of activations
inline constexpr std::int64_t kTileCols = 32;   ///< columns that one instruction multiplies
inline constexpr std::int64_t kStripRows = 32;  ///< weight rows of one MultiplyStrip

/// Multiplies kStripRows weight rows with `blocks` * kTileRows activation rows over some columns.
struct TileTask {
  const std::uint16_t* weights;      ///< bf16 [kStripRows, cols], dense
  const std::uint16_t* activations;  ///< first block, at the first column's tile
  std::int64_t block_stride;         ///< elements from one block of activations to the next
  std::int64_t cols;                 ///< a multiple of kTileCols
  std::int64_t blocks;
  float* sums;  ///< [kStripRows, blocks * kTileRows], row stride `sums_stride`
  std::int64_t sums_stride;
  bool accumulate;  ///< add to sums; else overwrite
};

struct TileKernels {
  /// Configures the calling thread's tiles, before `multiply`; `end` releases them.
  void (*begin)();
  void (*end)();
  /// Packs `rows` <= kTileRows rows of x, `stride` apart, cols columns, as a block of tiles [cols /
  /// 32 rounded up][16 pairs of columns][16 rows][2]; missing elements are 0.
  void (*pack)(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
               std::uint16_t* out);
  /// Converts n f32 to bf16, to nearest even; n a multiple of 16.
  void (*narrow)(const float* x, std::int64_t n, std::uint16_t* out);
  void (*multiply)(const TileTask& task);
  /// Computes y[m, r] = sums[r, m] + bias[r], m < rows, r < count; bias may be null.
  void (*store)(const float* sums, std::int64_t sums_stride, std::int64_t count, std::int64_t rows,
                const float* bias, float* y, std::int64_t y_stride);
};

inline constexpr int kWeightTypeIds = 31;  ///< above all values of WeightType

/// The product y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r] with x rounded to int8, for many
/// activation rows in tiles of int8, where the CPU has a unit for them. The bits are those of
/// PackedTask's product.
inline constexpr std::int64_t kTileInt8Rows = 32;  ///< largest number of weight rows of a task
struct TileInt8Task {
  const std::byte* weights;  ///< packed groups, `group_bytes` apart; the first row begins a group
  std::int64_t group_bytes;
  std::int64_t rows;  ///< at most kTileInt8Rows
  std::int64_t cols;
  QuantizedRows x;  ///< not interleaved, with room for M rounded up to kTileInt8Rows rows; those
                    ///< beyond M are read, but what they hold does not matter
  std::int64_t M;
  float* totals;  ///< scratch [M rounded up to kTileInt8Rows, kTileInt8Rows]
  float* y;       ///< row stride `y_stride`
  std::int64_t y_stride;
  const float* bias;  ///< null = 0
};

struct TileInt8Kernels {
  /// Indexed by WeightType; may be null.
  void (*multiply[kWeightTypeIds])(const TileInt8Task& task);
};

struct LinearKernels {
  /// Indexed by WeightType; null where there is no such type.
  LinearTypeKernels types[kWeightTypeIds];
  /// Rounds row [n] into row `row` of `out`, n a multiple of 32 or 256.
  void (*quantize_32)(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row);
  void (*quantize_256)(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row);
};

struct PackedKernels {
  void (*multiply[kWeightTypeIds])(const PackedTask& task);  ///< indexed by WeightType; may be null
  std::int64_t most_activations;                             ///< rows that are multiplied at once
};

}  // namespace manyhead::kernels
