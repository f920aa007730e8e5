#include <algorithm>

#include "runtime/linear/packed_rows.h"
#include "runtime/platform/math.h"

namespace manyhead::linear {

void RunPackedTiles(Worker& worker, const LinearWorkspace::Impl& impl, const PackedRows& rows,
                    std::span<const LinearOutput> outputs) noexcept {
  using kernels::ActivationBlock;
  using kernels::kPackedRows;
  const Isa isa = impl.limits.isa;
  const std::int64_t M = rows.count();
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  const kernels::QuantizedRows &xq_32 = impl.shared.xq_32, &xq_256 = impl.shared.xq_256;
  worker.ForEach(M, [&](std::int64_t m) {
    RoundRows(isa, rows, m, 1, outputs, buffers.rest, xq_32, xq_256, m);
  });
  const auto rows_of = [](const WeightView&) { return kernels::kTileInt8Rows; };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange item = FindItem(outputs, i, rows_of);
    const WeightView& weight = *item.output->weight;
    const bool small = KernelsOf(isa, weight.type).activations == ActivationBlock::kQ32;
    const auto multiply = [&](const RowRange& range, const PackedTarget& target) {
      const kernels::TileInt8Task task = {
          .weights = weight.data + range.first / kPackedRows * StrideBytes(weight),
          .group_bytes = StrideBytes(weight),
          .rows = range.count,
          .cols = weight.cols,
          .x = small ? xq_32 : xq_256,
          .M = M,
          .totals = buffers.tile_totals,
          .y = target.y,
          .y_stride = target.y_stride,
          .bias = target.bias};
      KernelsFor(isa).tiles_int8->multiply[static_cast<int>(weight.type)](task);
    };
    ForEachPanel(rows, item, buffers.split_y, multiply);
  });
}

}  // namespace manyhead::linear
