#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "kernels/linear_kernels.h"
#include "runtime/linear/gemm_onednn.h"
#include "runtime/linear/linear.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/math.h"

/// Declares what the kinds of products share: the workspace, and the division of work.

namespace manyhead::linear {

// A widened panel fits into the second-level cache.
inline constexpr std::int64_t kPanelRows = 96, kPanelCols = 1536;
/// Weight rows and columns that are narrowed to bf16 at a time; with their sums they stay in L2.
inline constexpr std::int64_t kTilePanelRows = 128, kTilePanelCols = 512;

inline const kernels::LinearTypeKernels& KernelsOf(Isa isa, WeightType type) noexcept {
  return KernelsFor(isa).linear->types[static_cast<int>(type)];
}

inline std::int64_t BytesOf(WeightType type, std::int64_t elements) noexcept {
  const WeightBlock block = WeightBlockOf(type);
  return elements / block.elements * block.bytes;
}

inline std::int64_t StrideBytes(const WeightView& weight) noexcept {
  if (weight.stride_bytes != 0) return weight.stride_bytes;
  return WeightRowBytes(weight) * (weight.packed ? kernels::kPackedRows : 1);
}

inline constexpr std::int64_t kMaxBlockBytes = 256;  ///< upper bound for the block of any type
/// Returns an upper bound for the bytes of `cols` columns of a row of any type that can be packed.
constexpr std::int64_t MostPackableBytes(std::int64_t cols) noexcept {
  return RoundUp(cols, 32) / 32 * 34;  // Q8_0
}

/// Returns true where the products of prompts may use tiles of bf16.
inline bool HasTiles(const LinearLimits& limits) noexcept {
  return limits.math == MathMode::kFast && KernelsFor(limits.isa).tiles != nullptr;
}

/// Divides a block of memory into aligned arrays by advancing an offset; with a null base it only
/// counts.
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* base) noexcept : base_(base) {}

  template <class T>
  T* Allocate(std::int64_t count) noexcept {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  std::int64_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

/// The buffers of one thread.
struct ThreadBuffers {
  kernels::QuantizedRows xq_32 = {};                     ///< [kMatvecRows, max_cols]
  kernels::QuantizedRows xq_256 = {};                    ///< [kMatvecRows, max_cols]
  kernels::QuantizedRows tiles_32 = {}, tiles_256 = {};  ///< [kMatvecRows, max_cols], interleaved
  std::byte* rows = nullptr;                             ///< a group of a packed weight, unpacked
  float* panel = nullptr;                                ///< [kPanelRows, kPanelCols]
  float* tail_y = nullptr;                               ///< [kGemmRows, kPanelRows]
  std::uint16_t* tile_weights = nullptr;                 ///< [kTilePanelRows, kTilePanelCols] bf16
  float* tile_sums = nullptr;                            ///< [kTilePanelRows, max_rows rounded up]
  float* tile_totals = nullptr;                          ///< as TileInt8Task::totals
  float* rest = nullptr;     ///< [max_cols] what rounding has left of an accurate row
  float* split_y = nullptr;  ///< [kMostSplitRows, kSplitPanel] products of their parts

  ThreadBuffers(const LinearLimits& limits, BumpAllocator& allocator) noexcept;
};

/// Largest number of rows that are rounded to int8 at a time where only decode uses int8: they
/// share one pass over the weights.
inline constexpr std::int64_t kDecodeRows = 64;

/// Most rows that tiles of int8 multiply at once.
inline constexpr std::int64_t kMostTileInt8Rows = 512;

/// Accurate rows are sums of kParts rows of int8 numbers, and so many accurate rows share a pass
/// over the weights; kernels see kParts rows for each, in whole tiles of kSplitTile.
inline constexpr std::int64_t kParts = 2, kSplitTile = 4;
inline constexpr std::int64_t kMostAccurateRows = 64;
/// The rows of int8 numbers for `rows` accurate rows.
constexpr std::int64_t SplitRows(std::int64_t rows) noexcept {
  return RoundUp(rows * kParts, kSplitTile);
}
inline constexpr std::int64_t kMostSplitRows = SplitRows(kMostAccurateRows);
/// Weight rows whose products with all parts are added up at a time.
inline constexpr std::int64_t kSplitPanel = kernels::kTileInt8Rows;

/// The threads' common buffers.
struct SharedBuffers {
  float* tail_x = nullptr;          ///< [kGemmRows, max_cols] rows left over from blocks
  std::uint16_t* tile_x = nullptr;  ///< activations as tiles
  std::int64_t quantized_rows = 0;  ///< rows that are rounded to int8 at a time
  /// [rows, max_cols] for more than kMatvecRows rows: quantized_rows, or the parts of accurate rows
  /// if they are more. For packed weights they are interleaved.
  kernels::QuantizedRows xq_32 = {}, xq_256 = {};

  SharedBuffers(const LinearLimits& limits, BumpAllocator& allocator) noexcept;
};

/// The activations that all products of a call share: some rows of its x.
struct Activations {
  const float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t first = 0;  ///< row of x, and of each output
  std::int64_t M = 0;
  std::int64_t cols = 0;

  const float* row(std::int64_t m) const noexcept { return x + (first + m) * stride; }
  Activations Rows(std::int64_t begin, std::int64_t count) const noexcept {
    return {x, stride, first + begin, count, cols};
  }
  /// Returns where the products of row m with the weight's rows from `r` on are written.
  float* Out(const LinearOutput& output, std::int64_t m, std::int64_t r) const noexcept {
    return output.y + (first + m) * output.y_stride + r;
  }
};

/// Rows [first, first + count) of one output's weight.
struct RowRange {
  const LinearOutput* output = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns item i of all outputs' rows, or an empty range where i is at least the number of items.
/// `rows_of(weight)` is the largest number of rows of one item.
template <class RowsOf>
RowRange FindItem(std::span<const LinearOutput> outputs, std::int64_t i, RowsOf rows_of) noexcept {
  for (const LinearOutput& output : outputs) {
    const std::int64_t rows = rows_of(*output.weight);
    const std::int64_t items = CeilDiv(output.weight->rows, rows);
    if (i < items) return {&output, i * rows, std::min(rows, output.weight->rows - i * rows)};
    i -= items;
  }
  return {};
}

template <class RowsOf>
std::int64_t CountItems(std::span<const LinearOutput> outputs, RowsOf rows_of) noexcept {
  std::int64_t items = 0;
  for (const LinearOutput& output : outputs) {
    const std::int64_t rows = rows_of(*output.weight);
    items += CeilDiv(output.weight->rows, rows);
  }
  return items;
}

/// Returns true where the fast product of any output's weight needs activations in such blocks.
bool WantedByAny(Isa isa, std::span<const LinearOutput> outputs,
                 kernels::ActivationBlock block) noexcept;

/// Rounds all rows of `in` to the blocks that `outputs` need, and writes them to the rows from `to`
/// on.
void Quantize(Isa isa, const Activations& in, std::span<const LinearOutput> outputs,
              const kernels::QuantizedRows& xq_32, const kernels::QuantizedRows& xq_256,
              std::int64_t to = 0) noexcept;

/// Returns the rows of `x` from row m on.
inline kernels::QuantizedRows QuantizedRowsFrom(const kernels::QuantizedRows& x,
                                                std::int64_t m) noexcept {
  const auto at = [&](auto* p, std::int64_t per) {
    return p == nullptr ? p : p + m * x.stride / per;
  };
  return {at(x.q, 1),     at(x.scales, 32),    at(x.scaled_sums, 32), at(x.half_sums, 16),
          at(x.sums, 32), at(x.pair_sums, 16), at(x.wide_sums, 32),   x.stride};
}

/// Whole rows of a weight in the layout of files: in place, or unpacked.
struct StoredRows {
  const std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;
};

/// Returns columns [first, first + cols) of rows [row, row + count) of `weight`; rows of a packed
/// one must belong to one group and are written to `buffer` [count, MostPackableBytes(cols)].
StoredRows RowsAsStored(const WeightView& weight, std::int64_t row, std::int64_t count,
                        std::int64_t first, std::int64_t cols, std::byte* buffer) noexcept;

/// Calls fn(rows, r, n) for parts of rows [row, row + count) of `weight` in the layout of files:
/// row `row` + r is the first of n.
template <class Fn>
void ForStoredRows(const WeightView& weight, std::int64_t row, std::int64_t count,
                   std::int64_t first, std::int64_t cols, std::byte* buffer, Fn&& fn) noexcept {
  const std::int64_t step = weight.packed ? kernels::kPackedRows : count;
  for (std::int64_t r = 0; r < count; r += step) {
    const std::int64_t n = std::min(step, count - r);
    fn(RowsAsStored(weight, row + r, n, first, cols, buffer), r, n);
  }
}

struct PackedRows;

/// Multiplies packed weights in int8; at most shared.quantized_rows rows, or accurate ones.
void RunPacked(Worker& worker, const LinearWorkspace::Impl& impl, const PackedRows& rows,
               std::span<const LinearOutput> outputs) noexcept;
/// The least number of rows of packed products that gain from tiles of int8: unpacking a block for
/// them takes as long as multiplying it with about 16 rows.
inline constexpr std::int64_t kFewestTileInt8Rows = 16;
/// Does what RunPacked does, with the same bits, in tiles of int8.
void RunPackedTiles(Worker& worker, const LinearWorkspace::Impl& impl, const PackedRows& rows,
                    std::span<const LinearOutput> outputs) noexcept;
/// Multiplies weights as they are stored in int8; at most shared.quantized_rows rows.
void RunMatvecInt8(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                   std::span<const LinearOutput> outputs) noexcept;
/// Multiplies in f32; `rows` of `in`, ascending, or all of them if `rows` is empty.
void RunMatvecExact(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                    std::span<const std::int64_t> rows,
                    std::span<const LinearOutput> outputs) noexcept;
/// Multiplies in f32 by oneDNN.
void RunPanels(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs) noexcept;
/// Multiplies in tiles of bf16; only where HasTiles.
void RunTiles(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
              std::span<const LinearOutput> outputs) noexcept;

}  // namespace manyhead::linear

namespace manyhead {

struct LinearWorkspace::Impl {
  explicit Impl(const LinearLimits& wanted);
  linear::ThreadBuffers Buffers(int thread) const noexcept;

  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  LinearLimits limits;
  std::int64_t size_bytes = 0;
  std::int64_t thread_bytes = 0;
  std::unique_ptr<std::byte[], Free> arena;  ///< the threads' buffers, then the shared ones
  linear::SharedBuffers shared;
};

}  // namespace manyhead
