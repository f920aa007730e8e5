#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/platform/math.h"

namespace manyhead::linear {

void RunPackedTiles(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                    std::span<const LinearOutput> outputs) noexcept {
  using kernels::ActivationBlock;
  using kernels::kPackedRows;
  const Isa isa = impl.limits.isa;
  const kernels::QuantizedRows &xq_32 = impl.shared.xq_32, &xq_256 = impl.shared.xq_256;
  worker.ForEach(in.M,
                 [&](std::int64_t m) { Quantize(isa, in.Rows(m, 1), outputs, xq_32, xq_256, m); });
  float* const totals = impl.Buffers(worker.index()).tile_totals;
  const auto rows_of = [](const WeightView&) { return kernels::kTileInt8Rows; };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange range = FindItem(outputs, i, rows_of);
    const LinearOutput& output = *range.output;
    const WeightView& weight = *output.weight;
    const std::int64_t group_bytes = StrideBytes(weight);
    const bool small = KernelsOf(isa, weight.type).activations == ActivationBlock::kQ32;
    const kernels::TileInt8Task task = {
        .weights = weight.data + range.first / kPackedRows * group_bytes,
        .group_bytes = group_bytes,
        .rows = range.count,
        .cols = weight.cols,
        .x = small ? xq_32 : xq_256,
        .M = in.M,
        .totals = totals,
        .y = in.Out(output, 0, range.first),
        .y_stride = output.y_stride,
        .bias = output.bias == nullptr ? nullptr : output.bias + range.first};
    KernelsFor(isa).tiles_int8->multiply[static_cast<int>(weight.type)](task);
  });
}

}  // namespace manyhead::linear
