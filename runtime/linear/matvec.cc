#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/linear/pack.h"

namespace manyhead::linear {
namespace {

using kernels::ActivationBlock;
using kernels::LinearKernels;
using kernels::LinearTypeKernels;
using kernels::MatvecTask;

// Bytes of weights that one item of the matvec reads: enough to stream, few enough to balance
// threads.
constexpr std::int64_t kItemBytes = 32 * 1024;

}  // namespace

bool WantedByAny(Isa isa, std::span<const LinearOutput> outputs, ActivationBlock block) noexcept {
  return std::any_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return KernelsOf(isa, output.weight->type).activations == block;
  });
}

void Quantize(Isa isa, const Activations& in, std::span<const LinearOutput> outputs,
              const kernels::QuantizedRows& xq_32, const kernels::QuantizedRows& xq_256,
              std::int64_t to) noexcept {
  const LinearKernels& kernels = *KernelsFor(isa).linear;
  if (WantedByAny(isa, outputs, ActivationBlock::kQ32))
    for (std::int64_t m = 0; m < in.M; ++m) kernels.quantize_32(in.row(m), in.cols, xq_32, to + m);
  if (WantedByAny(isa, outputs, ActivationBlock::kQ256))
    for (std::int64_t m = 0; m < in.M; ++m)
      kernels.quantize_256(in.row(m), in.cols, xq_256, to + m);
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

namespace {

/// Calls run(kernels, task) for each range of weight rows that a thread handles; `run` still has to
/// set the activations and their y in the task: see At.
template <class Run>
void ForEachItem(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                 std::span<const LinearOutput> outputs, Run&& run) noexcept {
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  const auto rows_of = [](const WeightView& weight) {
    const std::int64_t step = weight.packed ? kernels::kPackedRows : 2;  // kernels take pairs
    return std::max(step, kItemBytes / WeightRowBytes(weight) / step * step);
  };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    const RowRange range = FindItem(outputs, i, rows_of);
    const LinearOutput& output = *range.output;
    const WeightView& weight = *output.weight;
    ForStoredRows(weight, range.first, range.count, 0, weight.cols, buffers.rows,
                  [&](const StoredRows& rows, std::int64_t r, std::int64_t n) {
                    const std::int64_t at = range.first + r;
                    MatvecTask task = {};
                    task.weights = rows.data;
                    task.row_bytes = rows.stride_bytes;
                    task.rows = n;
                    task.cols = weight.cols;
                    task.x_stride = in.stride;
                    task.y = output.y + at;
                    task.y_stride = output.y_stride;
                    task.bias = output.bias == nullptr ? nullptr : output.bias + at;
                    run(KernelsOf(impl.limits.isa, weight.type), task);
                  });
  });
}

/// Calls fn(m, count) for each group of neighbouring rows that a kernel multiplies at once: groups
/// of `rows`, or of all M rows if `rows` is empty.
template <class Fn>
void ForEachGroup(std::int64_t M, std::span<const std::int64_t> rows, Fn&& fn) noexcept {
  if (rows.empty()) {
    for (std::int64_t m = 0; m < M; m += kMatvecRows) fn(m, std::min(kMatvecRows, M - m));
    return;
  }
  for (std::size_t i = 0, last; i < rows.size(); i = last) {
    last = i + 1;
    while (last < rows.size() && last < i + kMatvecRows && rows[last] == rows[last - 1] + 1) ++last;
    fn(rows[i], static_cast<std::int64_t>(last - i));
  }
}

}  // namespace

void RunMatvecExact(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                    std::span<const std::int64_t> rows,
                    std::span<const LinearOutput> outputs) noexcept {
  ForEachItem(worker, impl, in, outputs, [&](const LinearTypeKernels& kernels, MatvecTask task) {
    float* const y = task.y;
    ForEachGroup(in.M, rows, [&](std::int64_t m, std::int64_t count) {
      task.M = count;
      task.x = in.row(m);
      task.y = y + (in.first + m) * task.y_stride;
      kernels.matvec_exact(task);
    });
  });
}

void RunMatvecInt8(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
                   std::span<const LinearOutput> outputs) noexcept {
  const ThreadBuffers own = impl.Buffers(worker.index());
  const bool few = in.M <= kMatvecRows;
  const kernels::QuantizedRows& xq_32 = few ? own.xq_32 : impl.shared.xq_32;
  const kernels::QuantizedRows& xq_256 = few ? own.xq_256 : impl.shared.xq_256;
  // Each thread rounds few rows for itself, which takes less time than waiting for other threads.
  if (few)
    Quantize(impl.limits.isa, in, outputs, xq_32, xq_256);
  else
    worker.ForEach(in.M, [&](std::int64_t m) {
      Quantize(impl.limits.isa, in.Rows(m, 1), outputs, xq_32, xq_256, m);
    });
  ForEachItem(worker, impl, in, outputs, [&](const LinearTypeKernels& kernels, MatvecTask task) {
    const bool small = kernels.activations == ActivationBlock::kQ32;
    float* const y = task.y;
    ForEachGroup(in.M, {}, [&](std::int64_t m, std::int64_t count) {
      task.M = count;
      task.xq = QuantizedRowsFrom(small ? xq_32 : xq_256, m);
      task.y = y + (in.first + m) * task.y_stride;
      kernels.matvec_fast(task);
    });
  });
}

}  // namespace manyhead::linear
