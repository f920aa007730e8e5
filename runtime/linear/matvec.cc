#include <algorithm>

#include "runtime/linear/linear_impl.h"

namespace manyhead::linear {
namespace {

using kernels::ActivationBlock;
using kernels::LinearKernels;
using kernels::LinearTypeKernels;
using kernels::MatvecTask;

// Weights one item of the matvec reads: long enough to stream, short enough to share out evenly.
constexpr std::int64_t kItemBytes = 32 * 1024;

/// Rounds the activations as the outputs want them. Each thread does so for itself: that takes less
/// time than to wait for the others.
void Quantize(const LinearWorkspace::Impl& impl, const Activations& in,
              std::span<const LinearOutput> outputs, const ThreadBuffers& buffers) noexcept {
  const auto wanted_by_any = [&](ActivationBlock block) {
    return std::any_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
      return KernelsOf(impl.limits.isa, output.weight->type).activations == block;
    });
  };
  const LinearKernels& kernels = *KernelsFor(impl.limits.isa).linear;
  if (wanted_by_any(ActivationBlock::kQ32))
    for (std::int64_t m = 0; m < in.M; ++m)
      kernels.quantize_32(in.x + m * in.stride, in.cols, buffers.xq_32, m);
  if (wanted_by_any(ActivationBlock::kQ256))
    for (std::int64_t m = 0; m < in.M; ++m)
      kernels.quantize_256(in.x + m * in.stride, in.cols, buffers.xq_256, m);
}

}  // namespace

void RunMatvec(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs, bool fast) noexcept {
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  if (fast) Quantize(impl, in, outputs, buffers);
  const auto rows_of = [](const WeightView& weight) {
    return std::max(std::int64_t{2},
                    kItemBytes / WeightRowBytes(weight) / 2 * 2);  // kernels take pairs
  };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange range = FindItem(outputs, i, rows_of);
    const LinearOutput& output = *range.output;
    const WeightView& weight = *output.weight;
    const LinearTypeKernels& kernels = KernelsOf(impl.limits.isa, weight.type);
    const std::int64_t row_bytes = StrideBytes(weight);
    const MatvecTask task = {
        .weights = weight.data + range.first * row_bytes,
        .row_bytes = row_bytes,
        .rows = range.count,
        .cols = weight.cols,
        .x = in.x,
        .x_stride = in.stride,
        .xq = kernels.activations == ActivationBlock::kQ32 ? buffers.xq_32 : buffers.xq_256,
        .M = in.M,
        .y = output.y + range.first,
        .y_stride = output.y_stride,
        .bias = output.bias == nullptr ? nullptr : output.bias + range.first};
    (fast ? kernels.matvec_fast : kernels.matvec_exact)(task);
  });
}

}  // namespace manyhead::linear
