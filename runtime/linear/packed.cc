#include <algorithm>

#include "runtime/linear/packed_rows.h"
#include "runtime/platform/math.h"

namespace manyhead::linear {
namespace {

using kernels::ActivationBlock;
using kernels::kPackedRows;
using kernels::PackedTask;
using kernels::QuantizedRows;

// Bytes of weights of one item: with few activation rows they are read once, as a stream; with many
// rows they are read again and again, and should stay in the second-level cache.
constexpr std::int64_t kStreamedItemBytes = 32 * 1024, kCachedItemBytes = 128 * 1024;

/// Returns the number of activation rows that are multiplied at once: at most what the kernels
/// support.
std::int64_t RowsAtOnce(Isa isa, std::int64_t left) noexcept {
  const std::int64_t most = KernelsFor(isa).packed->most_activations;
  return left >= most ? most : left >= 4 ? 4 : 1;
}

/// Interleaves the words of `count` rows, which are `stride` apart.
void InterleaveWords(const void* from, std::int64_t stride, std::int64_t count, std::int64_t words,
                     void* to) noexcept {
  const auto* in = static_cast<const std::uint32_t*>(from);
  auto* out = static_cast<std::uint32_t*>(to);
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t w = 0; w < words; ++w) out[w * count + m] = in[m * stride + w];
}

/// Interleaves rows [0, count) of `rows` to one tile of activations for PackedTask, at row m of
/// `tiles`.
void Interleave(ActivationBlock block, const QuantizedRows& rows, std::int64_t count,
                std::int64_t cols, const QuantizedRows& tiles, std::int64_t m) noexcept {
  const QuantizedRows to = QuantizedRowsFrom(tiles, m);
  const std::int64_t stride = rows.stride;
  InterleaveWords(rows.q, stride / 4, count, cols / 4, to.q);
  if (block == ActivationBlock::kQ32) {
    InterleaveWords(rows.scales, stride / 32, count, cols / 32, to.scales);
    InterleaveWords(rows.scaled_sums, stride / 32, count, cols / 32, to.scaled_sums);
    InterleaveWords(rows.sums, stride / 32, count, cols / 32, to.sums);
  } else {
    InterleaveWords(rows.scales, stride / 32, count, cols / 256, to.scales);
    InterleaveWords(rows.pair_sums, stride / 32, count, cols / 32, to.pair_sums);
    InterleaveWords(rows.wide_sums, stride / 64, count, cols / 64, to.wide_sums);
  }
}

/// Rounds and interleaves the tile of `count` rows at row m of `rows`, for every kind of block that
/// an output wants.
void RoundTile(Isa isa, const PackedRows& rows, std::span<const LinearOutput> outputs,
               std::int64_t m, std::int64_t count, const ThreadBuffers& buffers,
               const QuantizedRows& tiles_32, const QuantizedRows& tiles_256) noexcept {
  RoundRows(isa, rows, m, count, outputs, buffers.rest, buffers.xq_32, buffers.xq_256, 0);
  for (const ActivationBlock block : {ActivationBlock::kQ32, ActivationBlock::kQ256})
    if (WantedByAny(isa, outputs, block)) {
      const bool small = block == ActivationBlock::kQ32;
      Interleave(block, small ? buffers.xq_32 : buffers.xq_256, count, rows.in.cols,
                 small ? tiles_32 : tiles_256, m);
    }
}

/// Calls fn(m, count) for each tile of M activation rows.
template <class Fn>
void ForEachTile(Isa isa, std::int64_t M, Fn&& fn) noexcept {
  for (std::int64_t m = 0, count; m < M; m += count) fn(m, count = RowsAtOnce(isa, M - m));
}

}  // namespace

void RunPacked(Worker& worker, const LinearWorkspace::Impl& impl, const PackedRows& rows,
               std::span<const LinearOutput> outputs) noexcept {
  const Isa isa = impl.limits.isa;
  const std::int64_t M = rows.count();
  if (M >= kFewestTileInt8Rows && KernelsFor(isa).tiles_int8 != nullptr)
    return RunPackedTiles(worker, impl, rows, outputs);
  const bool few = M <= kMatvecRows;
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  // One row is a tile as it is.
  const QuantizedRows& tiles_32 = M == 1 ? buffers.xq_32
                                  : few  ? buffers.tiles_32
                                         : impl.shared.xq_32;
  const QuantizedRows& tiles_256 = M == 1 ? buffers.xq_256
                                   : few  ? buffers.tiles_256
                                          : impl.shared.xq_256;
  const auto round = [&](std::int64_t m, std::int64_t count) {
    RoundTile(isa, rows, outputs, m, count, buffers, tiles_32, tiles_256);
  };
  // Each thread rounds a few rows for itself: that takes less time than to wait for the others.
  if (M == 1) {
    Quantize(isa, rows.in, outputs, buffers.xq_32, buffers.xq_256);
  } else if (few) {
    ForEachTile(isa, M, round);
  } else {
    const std::int64_t step = RowsAtOnce(isa, M);
    worker.ForEach(CeilDiv(M, step), [&](std::int64_t i) {
      ForEachTile(isa, std::min(step, M - i * step),
                  [&](std::int64_t m, std::int64_t count) { round(i * step + m, count); });
    });
  }
  const auto rows_of = [few](const WeightView& weight) {
    const std::int64_t bytes = few ? kStreamedItemBytes : kCachedItemBytes;
    return std::max<std::int64_t>(1, bytes / (WeightRowBytes(weight) * kPackedRows)) * kPackedRows;
  };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange item = FindItem(outputs, i, rows_of);
    const WeightType type = item.output->weight->type;
    const bool small = KernelsOf(isa, type).activations == ActivationBlock::kQ32;
    const auto multiply = [&](const RowRange& range, const PackedTarget& target) {
      const WeightView& weight = *range.output->weight;
      ForEachTile(isa, M, [&](std::int64_t m, std::int64_t count) {
        const PackedTask task = {
            .weights = weight.data + range.first / kPackedRows * StrideBytes(weight),
            .group_bytes = StrideBytes(weight),
            .rows = range.count,
            .cols = weight.cols,
            .x = QuantizedRowsFrom(small ? tiles_32 : tiles_256, m),
            .M = count,
            .y = target.y + m * target.y_stride,
            .y_stride = target.y_stride,
            .bias = target.bias};
        KernelsFor(isa).packed->multiply[static_cast<int>(type)](task);
      });
    };
    ForEachPanel(rows, item, buffers.split_y, multiply);
  });
}

}  // namespace manyhead::linear
