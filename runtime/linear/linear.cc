#include "runtime/linear/linear.h"

#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/linear/pack.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using linear::BytesOf;
using linear::KernelsOf;
using linear::StrideBytes;

enum class Path : std::uint8_t { kMatvecExact, kMatvecInt8, kPacked, kPanels, kTiles };

/// Whether a weight of `type` keeps its accuracy in bf16, give or take the rounding of its blocks.
bool IsLowBit(WeightType type) noexcept {
  return type != WeightType::kF32 && type != WeightType::kF16;
}

Path PathOf(const WeightView& weight, Isa isa, std::int64_t M, LinearMath math) noexcept {
  const bool int8 = math == LinearMath::kInt8 &&
                    KernelsOf(isa, weight.type).activations != kernels::ActivationBlock::kF32;
  const bool packed = int8 && weight.packed && KernelsFor(isa).packed != nullptr;
  if (M <= kMatvecRows)
    return packed ? Path::kPacked : int8 ? Path::kMatvecInt8 : Path::kMatvecExact;
  if (math != LinearMath::kF32 && KernelsFor(isa).tiles != nullptr && IsLowBit(weight.type))
    return Path::kTiles;
  return packed ? Path::kPacked : Path::kPanels;
}

bool IsInt8(Path path) noexcept { return path == Path::kMatvecInt8 || path == Path::kPacked; }

void RunPath(Path path, Worker& worker, const LinearWorkspace::Impl& impl,
             const linear::Activations& in, std::span<const LinearOutput> outputs) noexcept {
  switch (path) {
    case Path::kMatvecExact:
    case Path::kMatvecInt8:
      return linear::RunMatvec(worker, impl, in, outputs, path == Path::kMatvecInt8);
    case Path::kPacked:
      return linear::RunPacked(worker, impl, in, outputs);
    case Path::kPanels:
      return linear::RunPanels(worker, impl, in, outputs);
    case Path::kTiles:
      return linear::RunTiles(worker, impl, in, outputs);
  }
}

}  // namespace

void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               std::int64_t M, std::span<const LinearOutput> outputs, LinearMath math,
               LinearMath first_math) noexcept {
  if (M == 0 || outputs.empty()) return worker.Barrier();
  const LinearWorkspace::Impl& impl = workspace.impl();
  const linear::Activations in = {x, x_stride, M, outputs.front().weight->cols};
  MANYHEAD_DCHECK(M <= impl.limits.max_rows && in.cols <= impl.limits.max_cols);
  MANYHEAD_DCHECK(std::all_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return output.weight->cols == in.cols;
  }));
  if (impl.limits.math == MathMode::kExact) math = LinearMath::kF32;
  if (M == 1) math = std::min(math, first_math);
  const auto path_of = [&](const LinearOutput& output) {
    return PathOf(*output.weight, impl.limits.isa, M, math);
  };
  // Outputs that share x may have weights of different types, which go different ways.
  const LinearOutput* next = outputs.data();
  const LinearOutput* const end = next + outputs.size();
  while (next != end) {
    const Path path = path_of(*next);
    const LinearOutput* last = next + 1;
    while (last != end && path_of(*last) == path) ++last;
    const std::span<const LinearOutput> same = {next, last};
    RunPath(path, worker, impl, in, same);
    if (M > 1 && IsInt8(path) && first_math != LinearMath::kInt8)
      RunPath(Path::kMatvecExact, worker, impl, {x, x_stride, 1, in.cols}, same);
    next = last;
  }
}

void DequantizeRow(const WeightView& weight, Isa isa, std::int64_t row, float* out) noexcept {
  const auto widen = KernelsOf(isa, weight.type).widen;
  if (!weight.packed) return widen(weight.data + row * StrideBytes(weight), weight.cols, out);
  const WeightBlock block = WeightBlockOf(weight.type);
  std::byte bytes[linear::kMaxBlockBytes];
  for (std::int64_t c = 0; c < weight.cols; c += block.elements) {
    UnpackRows(weight, row, 1, c, block.elements, bytes, block.bytes);
    widen(bytes, block.elements, out + c);
  }
}

std::int64_t WeightRowBytes(const WeightView& weight) noexcept {
  return BytesOf(weight.type, weight.cols);
}

WeightView WeightRows(const WeightView& weight, std::int64_t first, std::int64_t rows) noexcept {
  MANYHEAD_DCHECK(!weight.packed || first % kernels::kPackedRows == 0);
  WeightView view = weight;
  view.data += (weight.packed ? first / kernels::kPackedRows : first) * StrideBytes(weight);
  view.rows = rows;
  return view;
}

WeightView WeightColumns(const WeightView& weight, std::int64_t first, std::int64_t cols) noexcept {
  WeightView view = weight;
  view.data += BytesOf(weight.type, first) * (weight.packed ? kernels::kPackedRows : 1);
  view.cols = cols;
  view.stride_bytes = StrideBytes(weight);
  return view;
}

const char* LinearPathName(const WeightView& weight, Isa isa, MathMode math,
                           std::int64_t M) noexcept {
  // [path][isa]
  static constexpr const char* kNames[][4] = {
      {"matvec f32 scalar", "matvec f32 avx2", "matvec f32 avx512", "matvec f32 avx512"},
      {"matvec int8 scalar", "matvec int8 avx2", "matvec int8 avx512", "matvec int8 avx512"},
      {"", "packed int8 avx2", "packed int8 avx512", "packed int8 avx512"},
      {"onednn f32", "onednn f32", "onednn f32", "onednn f32"},
      {"", "", "", "tiles bf16 amx"}};
  const LinearMath least = math == MathMode::kFast ? LinearMath::kInt8 : LinearMath::kF32;
  return kNames[static_cast<int>(PathOf(weight, isa, M, least))][static_cast<int>(isa)];
}

}  // namespace manyhead
