#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "manyhead/isa.h"
#include "manyhead/kinds.h"
#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// A weight matrix as a file stores it: `rows` outputs of `cols` inputs each, rows dense in blocks
/// of `type`; or some whole blocks of each row of a wider one. Or the same packed (pack.h), groups
/// of rows in the place of rows.
struct WeightView {
  WeightType type = WeightType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< a multiple of the type's block
  const std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;  ///< from row to row, or from group to group; 0 = dense
  bool packed = false;
};

/// Bytes of the blocks of one row.
std::int64_t WeightRowBytes(const WeightView& weight) noexcept;
/// Rows [first, first + rows) of `weight`; of a packed one `first` begins a group.
WeightView WeightRows(const WeightView& weight, std::int64_t first, std::int64_t rows) noexcept;
/// Columns [first, first + cols) of `weight`, both multiples of its type's block.
WeightView WeightColumns(const WeightView& weight, std::int64_t first, std::int64_t cols) noexcept;

/// One product of a RunLinear call: y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r].
struct LinearOutput {
  const WeightView* weight = nullptr;
  float* y = nullptr;           ///< [M, rows], row stride `y_stride`
  std::int64_t y_stride = 0;    ///< elements
  const float* bias = nullptr;  ///< [rows] or null
};

/// The activation rows of a product, by role: those that decode stand before those of prompts.
struct LinearRows {
  std::int64_t decode = 0;   ///< rows [0, decode)
  std::int64_t prefill = 0;  ///< rows [decode, decode + prefill)
  /// The rows, ascending, of which each is the first token of its sequence. Models park their
  /// largest activations there (arXiv:2402.17762), beside which int8 rounds the others away, and
  /// every later token attends to it: these rows are never rounded to int8.
  std::span<const std::int64_t> beginnings{};

  std::int64_t count() const noexcept { return decode + prefill; }
};

/// Sizes that every product through one LinearWorkspace stays within.
struct LinearLimits {
  std::int64_t max_cols = 0;  ///< of any weight
  std::int64_t max_rows = 0;  ///< M, activation rows of a call
  int threads = 1;
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
};

/// Buffers for products up to its limits, all allocated at once. RunLinear allocates nothing
/// itself; oneDNN, which serves rows of prompts, allocates and frees packing buffers inside a call
/// and keeps nothing per shape.
class LinearWorkspace {
 public:
  /// Errors   kInvalidArgument for a size out of range; kUnsupported for an instruction set this
  ///          CPU lacks.
  /// Threads  the first call also lowers oneDNN's instruction set to what MANYHEAD_ISA names, for
  ///          the whole process.
  static Result<LinearWorkspace> Create(const LinearLimits& limits);
  LinearWorkspace(LinearWorkspace&&) noexcept;
  LinearWorkspace& operator=(LinearWorkspace&&) noexcept;
  ~LinearWorkspace();

  /// Exactly what is allocated for the buffers.
  std::int64_t size_bytes() const noexcept;
  /// What a workspace of `limits`, which are in range, is going to allocate.
  static std::int64_t SizeBytes(const LinearLimits& limits) noexcept;

  struct Impl;  ///< incomplete outside this room
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit LinearWorkspace(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Products of the same activations x [M, cols] (row stride `x_stride`, elements), M =
/// rows.count(), with several weights. Called by every thread of a region; ends with a barrier. All
/// weights have the same cols.
///
/// Which product a row takes follows from its role, the weight and the workspace:
///
///            kFast, packed     kFast, low-bit as stored     f16, f32 (and kExact, all)
///   decode   packed int8       matvec int8                  matvec f32
///   prefill  packed int8 *     panels f32 *                 panels f32
///
/// where * is tiles of bf16 on AMX, also for bf16 weights. Packed int8 of 16 and more rows goes
/// through tiles of int8 there, which give the same bits. Without kernels for packed weights they
/// are as stored. Beginnings take the matvec in f32 in place of int8. Panels are fixed blocks of
/// weight rows, widened to f32 and multiplied by oneDNN. Rows that take the same product share one
/// pass over the weights.
///
/// Shapes   x [M, cols], M >= 0; y of each output [M, rows]. `x` is not read beyond cols.
/// Aliasing no y overlaps x, a weight, a bias or another y.
/// Accuracy a row of y is bitwise the same for every thread count and whatever other rows there
///          are. kFast rounds activations to int8 with a scale for each 32 (blocks of 32) or 256 (K
///          types): the error of a product is at most sum_c |weight[c]| * s / 2 with s = max |x| of
///          c's block / 127. A NaN or infinite activation then makes NaN. Tiles round activations
///          and weights to 8 bits of mantissa: at most 2^-7 sum_c |weight[c] x[c]|.
void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               const LinearRows& rows, std::span<const LinearOutput> outputs) noexcept;

inline constexpr std::int64_t kMatvecRows = 8;  ///< most rows that a matvec kernel multiplies

/// Widens row `row` of `weight` into out [cols].
void DequantizeRow(const WeightView& weight, Isa isa, std::int64_t row, float* out) noexcept;

/// The product that rows of `role` take with `weight`, but for beginnings, for reports: "matvec
/// int8 avx512", "packed int8 avx512", "onednn f32", "tiles bf16 amx".
const char* LinearPathName(const WeightView& weight, Isa isa, MathMode math, RowRole role) noexcept;

/// Whether rows of both roles take the same product with `weight`.
bool RolesAgree(const WeightView& weight, Isa isa, MathMode math) noexcept;

}  // namespace manyhead
