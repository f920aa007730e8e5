#include "runtime/linear/linear.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>
#include <utility>
#include <vector>

#include "kernels/linear_kernels.h"
#include "runtime/linear/gemm_onednn.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

using kernels::ActivationBlock;
using kernels::LinearKernels;
using kernels::LinearTypeKernels;
using kernels::MatvecTask;
using kernels::QuantizedRows;

// Weights one item of the matvec reads: long enough to stream, short enough to share out evenly.
constexpr std::int64_t kItemBytes = 32 * 1024;
// A widened panel fits the second-level cache.
constexpr std::int64_t kPanelRows = 96, kPanelCols = 1536;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::int64_t kMaxThreads = 4096;
constexpr std::align_val_t kAlignment{64};

std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct ArenaDeleter {
  void operator()(std::byte* p) const noexcept { ::operator delete[](p, kAlignment); }
};

const LinearTypeKernels& KernelsOf(Isa isa, WeightType type) noexcept {
  return KernelsFor(isa).linear->types[static_cast<int>(type)];
}

std::int64_t BytesOf(WeightType type, std::int64_t elements) noexcept {
  const WeightBlock block = WeightBlockOf(type);
  return elements / block.elements * block.bytes;
}

std::int64_t StrideBytes(const WeightView& weight) noexcept {
  return weight.stride_bytes != 0 ? weight.stride_bytes : WeightRowBytes(weight);
}

/// Hands out aligned pieces of a block of memory; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) noexcept : base_(base) {}

  template <class T>
  T* Take(std::int64_t count) noexcept {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  std::int64_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

/// One thread's own buffers.
struct ThreadBuffers {
  QuantizedRows xq_32 = {};   ///< [kMatvecRows, max_cols]
  QuantizedRows xq_256 = {};  ///< likewise
  float* panel = nullptr;     ///< [kPanelRows, kPanelCols]
  float* tail_y = nullptr;    ///< [kGemmRows, kPanelRows]

  ThreadBuffers(const LinearLimits& limits, Carver& carver) noexcept {
    if (limits.math == MathMode::kFast) {
      const std::int64_t rows = std::min(limits.max_rows, kMatvecRows);
      const std::int64_t stride = RoundUp(limits.max_cols, 256), size = rows * stride;
      xq_32.stride = xq_256.stride = stride;
      xq_32.q = carver.Take<std::int8_t>(size);
      xq_32.scales = carver.Take<float>(size / 32);
      xq_32.scaled_sums = carver.Take<float>(size / 32);
      xq_256.q = carver.Take<std::int8_t>(size);
      xq_256.scales = carver.Take<float>(size / 32);
      xq_256.half_sums = carver.Take<std::int16_t>(size / 16);
    }
    if (limits.max_rows > kMatvecRows) {
      panel = carver.Take<float>(kPanelRows * std::min(kPanelCols, limits.max_cols));
      tail_y = carver.Take<float>(kGemmRows * kPanelRows);
    }
  }
};

/// The threads' common buffer: the activation rows left over from blocks of kGemmRows.
float* TakeTailX(const LinearLimits& limits, Carver& carver) noexcept {
  return limits.max_rows > kMatvecRows ? carver.Take<float>(kGemmRows * limits.max_cols) : nullptr;
}

Status CheckLimits(const LinearLimits& limits) {
  std::ostringstream message;
  const auto outside = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value >= 1 && value <= most) return false;
    message << "LinearWorkspace: " << name << " = " << value << "; expected 1 to " << most;
    return true;
  };
  if (outside("max_cols", limits.max_cols, kMaxSize) ||
      outside("max_rows", limits.max_rows, kMaxSize) ||
      outside("threads", limits.threads, kMaxThreads))
    return {StatusCode::kInvalidArgument, message.str()};
  const std::vector<Isa> supported = SupportedIsas();
  if (std::find(supported.begin(), supported.end(), limits.isa) == supported.end()) {
    message << "LinearWorkspace: isa = " << IsaName(limits.isa) << "; this CPU runs at most "
            << IsaName(supported.back());
    return {StatusCode::kUnsupported, message.str()};
  }
  return {};
}

}  // namespace

struct LinearWorkspace::Impl {
  LinearLimits limits;
  std::int64_t size_bytes = 0;
  std::int64_t thread_bytes = 0;
  std::unique_ptr<std::byte[], ArenaDeleter> arena;  // the threads' buffers, then tail_x
  float* tail_x = nullptr;                           // [kGemmRows, max_cols]

  explicit Impl(const LinearLimits& wanted) : limits(wanted) {
    Carver count(nullptr), shared(nullptr);
    ThreadBuffers(limits, count);
    thread_bytes = count.used();
    TakeTailX(limits, shared);
    size_bytes = limits.threads * thread_bytes + shared.used();
    arena.reset(new (kAlignment) std::byte[static_cast<std::size_t>(size_bytes)]);
    Carver carver(arena.get() + limits.threads * thread_bytes);
    tail_x = TakeTailX(limits, carver);
  }

  ThreadBuffers Buffers(int thread) const noexcept {
    MANYHEAD_DCHECK(thread < limits.threads);
    Carver carver(arena.get() + thread * thread_bytes);
    return {limits, carver};
  }
};

Result<LinearWorkspace> LinearWorkspace::Create(const LinearLimits& limits) {
  if (Status status = CheckLimits(limits); !status.ok()) return status;
  if (limits.max_rows > kMatvecRows) ConfigureGemm();
  return LinearWorkspace(std::make_unique<Impl>(limits));
}

LinearWorkspace::LinearWorkspace(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
LinearWorkspace::LinearWorkspace(LinearWorkspace&&) noexcept = default;
LinearWorkspace& LinearWorkspace::operator=(LinearWorkspace&&) noexcept = default;
LinearWorkspace::~LinearWorkspace() = default;

std::int64_t LinearWorkspace::size_bytes() const noexcept { return impl_->size_bytes; }

namespace {

/// Activations shared by all products of a call.
struct Activations {
  const float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t M = 0;
  std::int64_t cols = 0;
};

/// Rows [first, first + count) of one output's weight.
struct RowRange {
  const LinearOutput* output = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// All outputs' rows cut into items: item i of them, or with i at least their number an empty
/// range. `rows_of(weight)` is the most rows of one item.
template <class RowsOf>
RowRange FindItem(std::span<const LinearOutput> outputs, std::int64_t i, RowsOf rows_of) noexcept {
  for (const LinearOutput& output : outputs) {
    const std::int64_t rows = rows_of(*output.weight);
    const std::int64_t items = (output.weight->rows + rows - 1) / rows;
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
    items += (output.weight->rows + rows - 1) / rows;
  }
  return items;
}

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

void RunMatvec(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs, MathMode math) noexcept {
  const bool fast = math == MathMode::kFast && impl.limits.math == MathMode::kFast;
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

/// Columns [c0, c0 + count) of a range of weight rows as f32.
struct Panel {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

Panel WidenPanel(Isa isa, const RowRange& range, std::int64_t c0, std::int64_t count,
                 float* buffer) noexcept {
  const WeightView& weight = *range.output->weight;
  const std::int64_t row_bytes = StrideBytes(weight);
  const std::byte* first = weight.data + range.first * row_bytes + BytesOf(weight.type, c0);
  if (weight.type == WeightType::kF32 &&
      reinterpret_cast<std::uintptr_t>(first) % alignof(float) == 0)
    return {reinterpret_cast<const float*>(first),
            row_bytes / static_cast<std::int64_t>(sizeof(float))};
  const auto widen = KernelsOf(isa, weight.type).widen;
  for (std::int64_t r = 0; r < range.count; ++r)
    widen(first + r * row_bytes, count, buffer + r * count);
  return {buffer, count};
}

/// One panel of weight rows times all activation rows. Whole blocks of kGemmRows rows are read and
/// written in place; the rest goes through padded buffers.
void RunPanel(const LinearWorkspace::Impl& impl, const Activations& in, const RowRange& range,
              const ThreadBuffers& buffers) noexcept {
  const std::int64_t tail = in.M % kGemmRows, direct = in.M - tail;
  const LinearOutput& output = *range.output;
  float* y = output.y + range.first;
  float* tail_y = buffers.tail_y;
  if (output.bias != nullptr) {
    const float* bias = output.bias + range.first;
    for (std::int64_t m = 0; m < direct; ++m)
      std::copy_n(bias, range.count, y + m * output.y_stride);
    for (std::int64_t m = 0; m < tail; ++m) std::copy_n(bias, range.count, tail_y + m * kPanelRows);
  }
  for (std::int64_t c0 = 0; c0 < in.cols; c0 += kPanelCols) {
    const std::int64_t count = std::min(kPanelCols, in.cols - c0);
    const Panel panel = WidenPanel(impl.limits.isa, range, c0, count, buffers.panel);
    GemmTask task = {.M = direct,
                     .N = range.count,
                     .K = count,
                     .a = in.x + c0,
                     .a_stride = in.stride,
                     .b = panel.data,
                     .b_stride = panel.stride,
                     .c = y,
                     .c_stride = output.y_stride,
                     .accumulate = c0 > 0 || output.bias != nullptr};
    if (direct > 0) RunGemm(task);
    task.M = kGemmRows;
    task.a = impl.tail_x + c0;
    task.a_stride = in.cols;
    task.c = tail_y;
    task.c_stride = kPanelRows;
    if (tail > 0) RunGemm(task);
  }
  for (std::int64_t m = 0; m < tail; ++m)
    std::copy_n(tail_y + m * kPanelRows, range.count, y + (direct + m) * output.y_stride);
}

void RunPanels(Worker& worker, const LinearWorkspace::Impl& impl, const Activations& in,
               std::span<const LinearOutput> outputs) noexcept {
  const std::int64_t tail = in.M % kGemmRows, direct = in.M - tail;
  if (tail > 0)
    worker.ForEach(kGemmRows, [&](std::int64_t m) {
      float* row = impl.tail_x + m * in.cols;
      if (m < tail)
        std::copy_n(in.x + (direct + m) * in.stride, in.cols, row);
      else
        std::fill_n(row, in.cols, 0.0F);
    });
  const ThreadBuffers buffers = impl.Buffers(worker.index());
  const auto rows_of = [](const WeightView&) { return kPanelRows; };
  worker.ForEach(CountItems(outputs, rows_of), [&](std::int64_t i) {
    RunPanel(impl, in, FindItem(outputs, i, rows_of), buffers);
  });
}

}  // namespace

void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               std::int64_t M, std::span<const LinearOutput> outputs, MathMode math) noexcept {
  if (M == 0 || outputs.empty()) return worker.Barrier();
  const LinearWorkspace::Impl& impl = workspace.impl();
  const Activations in = {x, x_stride, M, outputs.front().weight->cols};
  MANYHEAD_DCHECK(M <= impl.limits.max_rows && in.cols <= impl.limits.max_cols);
  MANYHEAD_DCHECK(std::all_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return output.weight->cols == in.cols;
  }));
  if (M <= kMatvecRows)
    RunMatvec(worker, impl, in, outputs, math);
  else
    RunPanels(worker, impl, in, outputs);
}

void DequantizeRow(const WeightView& weight, Isa isa, std::int64_t row, float* out) noexcept {
  KernelsOf(isa, weight.type).widen(weight.data + row * StrideBytes(weight), weight.cols, out);
}

std::int64_t WeightRowBytes(const WeightView& weight) noexcept {
  return BytesOf(weight.type, weight.cols);
}

WeightView WeightRows(const WeightView& weight, std::int64_t first, std::int64_t rows) noexcept {
  WeightView view = weight;
  view.data += first * StrideBytes(weight);
  view.rows = rows;
  return view;
}

WeightView WeightColumns(const WeightView& weight, std::int64_t first, std::int64_t cols) noexcept {
  WeightView view = weight;
  view.data += BytesOf(weight.type, first);
  view.cols = cols;
  view.stride_bytes = StrideBytes(weight);
  return view;
}

const char* LinearPathName(WeightType type, Isa isa, MathMode math, std::int64_t M) noexcept {
  if (M > kMatvecRows) return "onednn f32";
  const bool int8 =
      math == MathMode::kFast && KernelsOf(isa, type).activations != ActivationBlock::kF32;
  switch (isa) {
    case Isa::kScalar:
      return int8 ? "matvec int8 scalar" : "matvec f32 scalar";
    case Isa::kAvx2:
      return int8 ? "matvec int8 avx2" : "matvec f32 avx2";
    case Isa::kAvx512:
      return int8 ? "matvec int8 avx512" : "matvec f32 avx512";
  }
  return "?";
}

}  // namespace manyhead
