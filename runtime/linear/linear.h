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
/// of `type`; or some whole blocks of each row of a wider matrix. Or a packed matrix (pack.h), with
/// groups of rows in place of rows.
struct WeightView {
  WeightType type = WeightType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< a multiple of the type's block
  const std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;  ///< from row to row, or from group to group; 0 = dense
  bool packed = false;
};

/// Returns the bytes of the blocks of one row.
std::int64_t WeightRowBytes(const WeightView& weight) noexcept;
/// Returns rows [first, first + rows) of `weight`; in a packed one `first` must begin a group.
WeightView WeightRows(const WeightView& weight, std::int64_t first, std::int64_t rows) noexcept;
/// Returns columns [first, first + cols) of `weight`, both multiples of its type's block.
WeightView WeightColumns(const WeightView& weight, std::int64_t first, std::int64_t cols) noexcept;

/// One product of a RunLinear call: y[m, r] = sum_c x[m, c] * weight[r, c] + bias[r].
struct LinearOutput {
  const WeightView* weight = nullptr;
  float* y = nullptr;           ///< [M, rows], row stride `y_stride`
  std::int64_t y_stride = 0;    ///< elements
  const float* bias = nullptr;  ///< [rows] or null
};

/// The activation rows of a product, by role: decode rows precede those of prompts.
struct LinearRows {
  std::int64_t decode = 0;   ///< rows [0, decode)
  std::int64_t prefill = 0;  ///< rows [decode, decode + prefill)
  /// The rows, ascending, that one int8 number per activation is too coarse for: see IsAccurate.
  std::span<const std::int64_t> accurate{};

  std::int64_t count() const noexcept { return decode + prefill; }
};

/// The positions of a prompt whose rows are accurate.
inline constexpr std::int64_t kAccuratePositions = 64;

/// Whether a row of `role` at `position` of its sequence is accurate: its activations are then
/// multiplied as the sum of two int8 numbers each, the second of which is what the first has
/// rounded away. That holds for the first token of every sequence, where models keep their largest
/// activations (arXiv:2402.17762), beside which one int8 number would round the others away while
/// every later token attends to them; and for the first tokens of every prompt, because a short
/// one has no other tokens over which the errors of rounding average out.
constexpr bool IsAccurate(RowRole role, std::int64_t position) noexcept {
  return position < (role == RowRole::kPrefill ? kAccuratePositions : 1);
}

/// Sizes that every product through one LinearWorkspace stays within.
struct LinearLimits {
  std::int64_t max_cols = 0;  ///< columns of any weight
  std::int64_t max_rows = 0;  ///< M, activation rows of a call
  int threads = 1;
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
};

/// Buffers for products up to its limits, all allocated at once. RunLinear itself allocates
/// nothing; oneDNN, which computes prompts, allocates and frees packing buffers inside a call and
/// keeps nothing per shape.
class LinearWorkspace {
 public:
  /// Errors   kInvalidArgument for a size out of range; kUnsupported for an instruction set that
  ///          this CPU lacks.
  /// Threads  the first call also limits oneDNN's instruction set to the one that MANYHEAD_ISA
  ///          names, for the whole process.
  static Result<LinearWorkspace> Create(const LinearLimits& limits);
  LinearWorkspace(LinearWorkspace&&) noexcept;
  LinearWorkspace& operator=(LinearWorkspace&&) noexcept;
  ~LinearWorkspace();

  /// The exact number of bytes allocated for the buffers.
  std::int64_t size_bytes() const noexcept;
  /// Returns the bytes that a workspace of `limits`, which must be in range, allocates.
  static std::int64_t SizeBytes(const LinearLimits& limits) noexcept;

  struct Impl;  ///< incomplete outside this room
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit LinearWorkspace(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Computes the products of the same activations x [M, cols] (row stride `x_stride`, elements), M =
/// rows.count(), with several weights. Every thread of a region must call it; it ends with a
/// barrier. All weights have the same cols.
///
/// The role, the weight and the workspace decide which product a row uses:
///
///            kFast, packed     kFast, low-bit as stored     f16, f32 (and kExact, all)
///   decode   packed int8       matvec int8                  matvec f32
///   prefill  packed int8       panels f32 *                 panels f32
///
/// where * is tiles of bf16 on AMX, also for bf16 weights. Packed int8 of 16 and more rows goes
/// through tiles of int8 there, which give the same bits. Without kernels for packed weights they
/// are as stored. An accurate row takes two int8 numbers per activation with packed weights, and
/// the matvec in f32 in place of the matvec in int8. Panels are fixed blocks of weight rows,
/// widened to f32 and multiplied by oneDNN. Rows that take the same product share one pass over the
/// weights, but for accurate rows, which take a pass of their own.
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

/// Largest number of rows that a matvec kernel multiplies.
inline constexpr std::int64_t kMatvecRows = 8;

/// Widens row `row` of `weight` into out [cols].
void DequantizeRow(const WeightView& weight, Isa isa, std::int64_t row, float* out) noexcept;

/// The product that rows of `role` take with `weight`, but for accurate rows, for reports: "matvec
/// int8 avx512", "packed int8 avx512", "onednn f32", "tiles bf16 amx".
const char* LinearPathName(const WeightView& weight, Isa isa, MathMode math, RowRole role) noexcept;

/// Returns true where rows of both roles use the same product with `weight`.
bool RolesAgree(const WeightView& weight, Isa isa, MathMode math) noexcept;

}  // namespace manyhead
