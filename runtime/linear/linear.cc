#include "runtime/linear/linear.h"

#include <algorithm>

#include "runtime/linear/linear_impl.h"
#include "runtime/linear/pack.h"
#include "runtime/linear/packed_rows.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using linear::BytesOf;
using linear::KernelsOf;
using linear::StrideBytes;

enum class Path : std::uint8_t { kMatvecExact, kMatvecInt8, kPacked, kPanels, kTiles };

/// Returns true where bf16 keeps the accuracy of a weight of `type`, apart from the rounding of its
/// blocks.
bool IsLowBit(WeightType type) noexcept {
  return type != WeightType::kF32 && type != WeightType::kF16;
}

Path PathOf(const WeightView& weight, Isa isa, MathMode math, RowRole role) noexcept {
  const bool fast = math == MathMode::kFast;
  const bool int8 =
      fast && KernelsOf(isa, weight.type).activations != kernels::ActivationBlock::kF32;
  const bool packed = int8 && weight.packed && KernelsFor(isa).packed != nullptr;
  if (packed) return Path::kPacked;
  if (role == RowRole::kDecode) return int8 ? Path::kMatvecInt8 : Path::kMatvecExact;
  return fast && KernelsFor(isa).tiles != nullptr && IsLowBit(weight.type) ? Path::kTiles
                                                                           : Path::kPanels;
}

bool IsInt8(Path path) noexcept { return path == Path::kMatvecInt8 || path == Path::kPacked; }

void RunPath(Path path, Worker& worker, const LinearWorkspace::Impl& impl,
             const linear::Activations& in, std::span<const LinearOutput> outputs) noexcept {
  switch (path) {
    case Path::kMatvecExact:
      return linear::RunMatvecExact(worker, impl, in, {}, outputs);
    case Path::kMatvecInt8:
      return linear::RunMatvecInt8(worker, impl, in, outputs);
    case Path::kPacked:
      return linear::RunPacked(worker, impl, {in, {}}, outputs);
    case Path::kPanels:
      return linear::RunPanels(worker, impl, in, outputs);
    case Path::kTiles:
      return linear::RunTiles(worker, impl, in, outputs);
  }
}

/// Rows [begin, begin + count) of `in`, and of every output.
struct RowRun {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// The products of some rows that all take `path`, of which none is accurate.
void RunPlainRows(Path path, const RowRun& run, Worker& worker, const LinearWorkspace::Impl& impl,
                  const linear::Activations& in, std::span<const LinearOutput> outputs) noexcept {
  // The workspace holds a limited number of rows in int8.
  const std::int64_t most = IsInt8(path) ? impl.shared.quantized_rows : run.count;
  for (std::int64_t done = 0; done < run.count; done += most)
    RunPath(path, worker, impl, in.Rows(run.begin + done, std::min(most, run.count - done)),
            outputs);
}

/// Calls fn for the runs that are left of `run` without the accurate rows. Few accurate neighbours
/// stay in them: to multiply them twice takes less time than another pass over the weights.
template <class Fn>
void ForEachPlainRun(const RowRun& run, std::span<const std::int64_t> accurate, Fn&& fn) {
  constexpr std::size_t kFew = 8;
  const std::int64_t end = run.begin + run.count;
  std::int64_t begin = run.begin;
  for (std::size_t i = 0, next; i < accurate.size(); i = next) {
    for (next = i + 1; next < accurate.size() && accurate[next] == accurate[next - 1] + 1;) ++next;
    const std::int64_t first = accurate[i], last = accurate[next - 1] + 1;
    const bool whole = first == begin && last == end;
    if (next - i < kFew && !whole) continue;
    if (first > begin) fn(RowRun{begin, first - begin});
    begin = last;
  }
  if (begin < end) fn(RowRun{begin, end - begin});
}

/// The products of some rows that all take `path`.
void RunRows(Path path, const RowRun& run, std::span<const std::int64_t> accurate, Worker& worker,
             const LinearWorkspace::Impl& impl, const linear::Activations& in,
             std::span<const LinearOutput> outputs) noexcept {
  const auto low = std::lower_bound(accurate.begin(), accurate.end(), run.begin);
  const auto high = std::lower_bound(low, accurate.end(), run.begin + run.count);
  std::span<const std::int64_t> some(low, high);
  if (!IsInt8(path)) some = {};
  ForEachPlainRun(run, some, [&](const RowRun& plain) {
    RunPlainRows(path, plain, worker, impl, in, outputs);
  });
  if (path == Path::kMatvecInt8 && !some.empty())
    return linear::RunMatvecExact(worker, impl, in, some, outputs);
  while (!some.empty()) {
    const std::size_t count = std::min<std::size_t>(some.size(), linear::kMostAccurateRows);
    linear::RunPacked(worker, impl, {in, some.first(count)}, outputs);
    some = some.subspan(count);
  }
}

}  // namespace

void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               const LinearRows& rows, std::span<const LinearOutput> outputs) noexcept {
  const std::int64_t M = rows.count();
  if (M == 0 || outputs.empty()) return worker.Barrier();
  const LinearWorkspace::Impl& impl = workspace.impl();
  const linear::Activations in = {x, x_stride, 0, M, outputs.front().weight->cols};
  MANYHEAD_DCHECK(M <= impl.limits.max_rows && in.cols <= impl.limits.max_cols);
  MANYHEAD_DCHECK(std::all_of(outputs.begin(), outputs.end(), [&](const LinearOutput& output) {
    return output.weight->cols == in.cols;
  }));
  const auto path_of = [&](const LinearOutput& output, RowRole role) {
    return PathOf(*output.weight, impl.limits.isa, impl.limits.math, role);
  };
  // A role without rows must not choose a product.
  const RowRole some_decode = rows.decode > 0 ? RowRole::kDecode : RowRole::kPrefill;
  const RowRole some_prefill = rows.prefill > 0 ? RowRole::kPrefill : RowRole::kDecode;
  const bool one_role = some_decode == some_prefill;
  // Outputs that share x may have weights of different types, which use different products.
  const LinearOutput* next = outputs.data();
  const LinearOutput* const end = next + outputs.size();
  while (next != end) {
    const Path decode = path_of(*next, some_decode);
    const Path prefill = one_role ? decode : path_of(*next, some_prefill);
    const LinearOutput* last = next + 1;
    while (last != end && path_of(*last, some_decode) == decode &&
           (one_role || path_of(*last, some_prefill) == prefill))
      ++last;
    const auto run = [&](Path path, const RowRun& run_rows) {
      if (run_rows.count > 0)
        RunRows(path, run_rows, rows.accurate, worker, impl, in, {next, last});
    };
    if (decode == prefill) {
      run(decode, {0, M});
    } else {
      run(decode, {0, rows.decode});
      run(prefill, {rows.decode, rows.prefill});
    }
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
                           RowRole role) noexcept {
  // [path][isa]
  static constexpr const char* kNames[][4] = {
      {"matvec f32 scalar", "matvec f32 avx2", "matvec f32 avx512", "matvec f32 avx512"},
      {"matvec int8 scalar", "matvec int8 avx2", "matvec int8 avx512", "matvec int8 avx512"},
      {"", "packed int8 avx2", "packed int8 avx512", "packed int8 amx"},
      {"onednn f32", "onednn f32", "onednn f32", "onednn f32"},
      {"", "", "", "tiles bf16 amx"}};
  return kNames[static_cast<int>(PathOf(weight, isa, math, role))][static_cast<int>(isa)];
}

bool RolesAgree(const WeightView& weight, Isa isa, MathMode math) noexcept {
  return PathOf(weight, isa, math, RowRole::kDecode) ==
         PathOf(weight, isa, math, RowRole::kPrefill);
}

}  // namespace manyhead
