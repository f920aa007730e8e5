#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/linear/pack.h"

namespace manyhead::linear {
namespace {

using kernels::ActivationBlock;
using kernels::LinearKernels;
using kernels::LinearTypeKernels;
using kernels::MatvecTask;

// Weights one item of the matvec reads: long enough to stream, short enough to share out evenly.
constexpr std::int64_t kItemBytes = 32 * 1024;

}  // namespace

bool WantedByAny(Isa isa, std::span<const LinearOutput> outputs, ActivationBlock block) noexcept {
  return std::any_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return KernelsOf(isa, output.weight->type).activations == block;
  });
}

void Quantize(Isa isa, const Activations& in, std::span<const LinearOutput> outputs,
              const kernels::QuantizedRows& xq_32, const kernels::QuantizedRows& xq_256) noexcept {
  const LinearKernels& kernels = *KernelsFor(isa).linear;
  if (WantedByAny(isa, outputs, ActivationBlock::kQ32))
    for (std::int64_t m = 0; m < in.M; ++m)
      kernels.quantize_32(in.x + m * in.stride, in.cols, xq_32, m);
  if (WantedByAny(isa, outputs, ActivationBlock::kQ256))
    for (std::int64_t m = 0; m < in.M; ++m)
      kernels.quantize_256(in.x + m * in.stride, in.cols, xq_256, m);
}

StoredRows RowsAsStored(const WeightView& weight, std::int64_t row, std::int64_t count,
                        std::int64_t first, std::int64_t cols, std::byte* buffer) noexcept {
  if (!weight.packed)
    return {weight.data + row * StrideBytes(weight) + BytesOf(weight.type, first),
            StrideBytes(weight)};
  const std::int64_t stride = BytesOf(weight.type, cols);
  UnpackRows(weight, row, count, first, cols, buffer, stride);
  return {buffer, stride};
}

void RunMatvec(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs, bool fast) noexcept {
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  // Each thread rounds for itself: that takes less time than to wait for the others.
  if (fast) Quantize(impl.limits.isa, in, outputs, buffers.xq_32, buffers.xq_256);
  const auto rows_of = [](const WeightView& weight) {
    const std::int64_t step = weight.packed ? kernels::kPackedRows : 2;  // kernels take pairs
    return std::max(step, kItemBytes / WeightRowBytes(weight) / step * step);
  };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange range = FindItem(outputs, i, rows_of);
    const LinearOutput& output = *range.output;
    const WeightView& weight = *output.weight;
    const LinearTypeKernels& kernels = KernelsOf(impl.limits.isa, weight.type);
    const auto run = [&](const StoredRows& rows, std::int64_t r, std::int64_t n) {
      const std::int64_t at = range.first + r;
      const MatvecTask task = {
          .weights = rows.data,
          .row_bytes = rows.stride_bytes,
          .rows = n,
          .cols = weight.cols,
          .x = in.x,
          .x_stride = in.stride,
          .xq = kernels.activations == ActivationBlock::kQ32 ? buffers.xq_32 : buffers.xq_256,
          .M = in.M,
          .y = output.y + at,
          .y_stride = output.y_stride,
          .bias = output.bias == nullptr ? nullptr : output.bias + at};
      (fast ? kernels.matvec_fast : kernels.matvec_exact)(task);
    };
    ForStoredRows(weight, range.first, range.count, 0, weight.cols, buffers.rows, run);
  });
}

}  // namespace manyhead::linear
