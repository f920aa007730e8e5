#include <algorithm>

#include "runtime/linear/linear_impl.h"

namespace manyhead::linear {
namespace {

/// Columns [c0, c0 + count) of a range of weight rows, as f32.
struct Panel {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

Panel WidenPanel(Isa isa, const RowRange& range, std::int64_t c0, std::int64_t count,
                 const ThreadBuffers& buffers) noexcept {
  const WeightView& weight = *range.output->weight;
  const auto widen = KernelsOf(isa, weight.type).widen;
  Panel panel = {buffers.panel, count};
  ForStoredRows(weight, range.first, range.count, c0, count, buffers.rows,
                [&](const StoredRows& rows, std::int64_t r, std::int64_t n) {
                  if (weight.type == WeightType::kF32 &&
                      reinterpret_cast<std::uintptr_t>(rows.data) % alignof(float) == 0) {
                    panel = {reinterpret_cast<const float*>(rows.data),
                             rows.stride_bytes / static_cast<std::int64_t>(sizeof(float))};
                    return;
                  }
                  for (std::int64_t k = 0; k < n; ++k)
                    widen(rows.data + k * rows.stride_bytes, count,
                          buffers.panel + (r + k) * count);
                });
  return panel;
}

/// Multiplies one panel of weight rows with all activation rows. Whole blocks of kGemmRows rows are
/// read and written in place; the remaining rows go through padded buffers.
void RunPanel(const LinearWorkspace::Impl& impl, const Activations& in, const RowRange& range,
              const ThreadBuffers& buffers) noexcept {
  const std::int64_t tail = in.M % kGemmRows, direct = in.M - tail;
  const LinearOutput& output = *range.output;
  float* y = in.Out(output, 0, range.first);
  float* tail_y = buffers.tail_y;
  if (output.bias != nullptr) {
    const float* bias = output.bias + range.first;
    for (std::int64_t m = 0; m < direct; ++m)
      std::copy_n(bias, range.count, y + m * output.y_stride);
    for (std::int64_t m = 0; m < tail; ++m) std::copy_n(bias, range.count, tail_y + m * kPanelRows);
  }
  for (std::int64_t c0 = 0; c0 < in.cols; c0 += kPanelCols) {
    const std::int64_t count = std::min(kPanelCols, in.cols - c0);
    const Panel panel = WidenPanel(impl.limits.isa, range, c0, count, buffers);
    GemmTask task = {.M = direct,
                     .N = range.count,
                     .K = count,
                     .a = in.row(0) + c0,
                     .a_stride = in.stride,
                     .b = panel.data,
                     .b_stride = panel.stride,
                     .c = y,
                     .c_stride = output.y_stride,
                     .accumulate = c0 > 0 || output.bias != nullptr};
    if (direct > 0) RunGemm(task);
    task.M = kGemmRows;
    task.a = impl.shared.tail_x + c0;
    task.a_stride = in.cols;
    task.c = tail_y;
    task.c_stride = kPanelRows;
    if (tail > 0) RunGemm(task);
  }
  for (std::int64_t m = 0; m < tail; ++m)
    std::copy_n(tail_y + m * kPanelRows, range.count, y + (direct + m) * output.y_stride);
}

}  // namespace

void RunPanels(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs) noexcept {
  const std::int64_t tail = in.M % kGemmRows, direct = in.M - tail;
  if (tail > 0)
    worker.ForEach(kGemmRows, [&](std::int64_t m) {
      float* row = impl.shared.tail_x + m * in.cols;
      if (m < tail)
        std::copy_n(in.row(direct + m), in.cols, row);
      else
        std::fill_n(row, in.cols, 0.0F);
    });
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  const auto rows_of = [](const WeightView&) { return kPanelRows; };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    RunPanel(impl, in, FindItem(outputs, i, rows_of), buffers);
  });
}

}  // namespace manyhead::linear
