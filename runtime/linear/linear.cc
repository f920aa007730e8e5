#include "runtime/linear/linear.h"

#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using linear::BytesOf;
using linear::KernelsOf;
using linear::StrideBytes;

/// Whether a weight of `type` keeps its accuracy in bf16, give or take the rounding of its blocks.
bool IsLowBit(WeightType type) noexcept {
  return type != WeightType::kF32 && type != WeightType::kF16;
}

}  // namespace

void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               std::int64_t M, std::span<const LinearOutput> outputs, LinearMath math) noexcept {
  if (M == 0 || outputs.empty()) return worker.Barrier();
  const LinearWorkspace::Impl& impl = workspace.impl();
  const linear::Activations in = {x, x_stride, M, outputs.front().weight->cols};
  MANYHEAD_DCHECK(M <= impl.limits.max_rows && in.cols <= impl.limits.max_cols);
  MANYHEAD_DCHECK(std::all_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return output.weight->cols == in.cols;
  }));
  if (impl.limits.math == MathMode::kExact) math = LinearMath::kF32;
  if (M <= kMatvecRows) {
    linear::RunMatvec(worker, impl, in, outputs, math == LinearMath::kInt8);
    return;
  }
  if (math == LinearMath::kF32 || !linear::HasTiles(impl.limits)) {
    linear::RunPanels(worker, impl, in, outputs);
    return;
  }
  // Outputs that share x have weights of different types; those that tiles would make less exact
  // than they are stored go through f32.
  const LinearOutput* next = outputs.data();
  const LinearOutput* const end = next + outputs.size();
  while (next != end) {
    const bool tiles = IsLowBit(next->weight->type);
    const LinearOutput* last = next + 1;
    while (last != end && IsLowBit(last->weight->type) == tiles) ++last;
    (tiles ? linear::RunTiles : linear::RunPanels)(worker, impl, in, {next, last});
    next = last;
  }
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
  if (M > kMatvecRows) {
    const bool tiles = math == MathMode::kFast && KernelsFor(isa).tiles != nullptr;
    return tiles && IsLowBit(type) ? "tiles bf16 amx" : "onednn f32";
  }
  const bool int8 =
      math == MathMode::kFast && KernelsOf(isa, type).activations != kernels::ActivationBlock::kF32;
  switch (isa) {
    case Isa::kScalar:
      return int8 ? "matvec int8 scalar" : "matvec f32 scalar";
    case Isa::kAvx2:
      return int8 ? "matvec int8 avx2" : "matvec f32 avx2";
    case Isa::kAvx512:
    case Isa::kAmx:
      return int8 ? "matvec int8 avx512" : "matvec f32 avx512";
  }
  return "?";
}

}  // namespace manyhead
