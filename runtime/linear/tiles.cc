#include <algorithm>

#include "runtime/linear/linear_impl.h"

namespace manyhead::linear {
namespace {

using kernels::kStripRows;
using kernels::kTileCols;
using kernels::kTileRows;

/// Converts columns [c0, c0 + count) of a range of weight rows to bf16, padded with zeros to whole
/// tiles.
void NarrowPanel(Isa isa, const RowRange& range, std::int64_t c0, std::int64_t count,
                 const ThreadBuffers& buffers) noexcept {
  const WeightView& weight = *range.output->weight;
  const std::int64_t padded = RoundUp(count, kTileCols);
  const auto widen = KernelsOf(isa, weight.type).widen;
  std::uint16_t* out = buffers.tile_weights;
  alignas(64) float row[kTilePanelCols];
  std::fill(row + count, row + padded, 0.0F);
  ForStoredRows(weight, range.first, range.count, c0, count, buffers.rows,
                [&](const StoredRows& rows, std::int64_t r, std::int64_t n) {
                  for (std::int64_t k = 0; k < n; ++k) {
                    widen(rows.data + k * rows.stride_bytes, count, row);
                    KernelsFor(isa).tiles->narrow(row, padded, out + (r + k) * padded);
                  }
                });
  // The rows of a strip that do not exist are cleared: their sums are not used, but NaN would be
  // slow.
  std::fill(out + range.count * padded, out + RoundUp(range.count, kStripRows) * padded,
            std::uint16_t{0});
}

/// Returns the weight rows of an item: enough to share the activations well, but so few that every
/// thread gets some. The number does not change results.
std::int64_t PanelRows(std::span<const LinearOutput> outputs, int threads) noexcept {
  constexpr std::int64_t kItemsPerThread = 4;
  std::int64_t rows = 0;
  for (const LinearOutput& output : outputs) rows += output.weight->rows;
  const std::int64_t share = rows / (kItemsPerThread * threads) / kStripRows * kStripRows;
  return std::clamp(share, kStripRows, kTilePanelRows);
}

void RunTilePanel(const LinearWorkspace::Impl& impl, const Activations& in, const RowRange& range,
                  const ThreadBuffers& buffers) noexcept {
  const kernels::TileKernels& kernels = *KernelsFor(impl.limits.isa).tiles;
  const std::int64_t blocks = RoundUp(in.M, kTileRows) / kTileRows;
  kernels::TileTask task = {};
  task.block_stride = RoundUp(in.cols, kTileCols) * kTileRows;
  task.sums_stride = blocks * kTileRows;
  for (std::int64_t c0 = 0; c0 < in.cols; c0 += kTilePanelCols) {
    const std::int64_t count = std::min(kTilePanelCols, in.cols - c0);
    NarrowPanel(impl.limits.isa, range, c0, count, buffers);
    task.cols = RoundUp(count, kTileCols);
    task.accumulate = c0 > 0;
    // Two blocks of activations stay in L1 while all strips of weights are multiplied with them.
    for (std::int64_t block = 0; block < blocks; block += 2) {
      task.blocks = std::min<std::int64_t>(2, blocks - block);
      task.activations = impl.shared.tile_x + block * task.block_stride + c0 * kTileRows;
      for (std::int64_t r = 0; r < range.count; r += kStripRows) {
        task.weights = buffers.tile_weights + r * task.cols;
        task.sums = buffers.tile_sums + r * task.sums_stride + block * kTileRows;
        kernels.multiply(task);
      }
    }
  }
  const LinearOutput& output = *range.output;
  kernels.store(buffers.tile_sums, task.sums_stride, range.count, in.M,
                output.bias == nullptr ? nullptr : output.bias + range.first,
                in.Out(output, 0, range.first), output.y_stride);
}

}  // namespace

void RunTiles(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
              std::span<const LinearOutput> outputs) noexcept {
  const kernels::TileKernels& kernels = *KernelsFor(impl.limits.isa).tiles;
  const std::int64_t blocks = RoundUp(in.M, kTileRows) / kTileRows;
  const std::int64_t block_stride = RoundUp(in.cols, kTileCols) * kTileRows;
  worker.ForEach(blocks, [&](std::int64_t block) {
    const std::int64_t m = block * kTileRows;
    kernels.pack(in.row(m), in.stride, std::min(kTileRows, in.M - m), in.cols,
                 impl.shared.tile_x + block * block_stride);
  });
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  const std::int64_t panel_rows = PanelRows(outputs, worker.count());
  const auto rows_of = [panel_rows](const WeightView&) { return panel_rows; };
  kernels.begin();
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    RunTilePanel(impl, in, FindItem(outputs, i, rows_of), buffers);
  });
  kernels.end();
}

}  // namespace manyhead::linear
