#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "manyhead/isa.h"
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

/// The least exact arithmetic a call may use; kExact workspaces always take f32.
enum class LinearMath : std::uint8_t {
  kF32,   ///< weights as stored, f32 activations
  kBf16,  ///< also both rounded to bf16, which keeps outliers: tiles, where weights are low-bit
  kInt8,  ///< also int8 activations: the matvec, and products of packed weights
};

/// Sizes that every product through one LinearWorkspace stays within.
struct LinearLimits {
  std::int64_t max_cols = 0;  ///< of any weight
  std::int64_t max_rows = 0;  ///< M, activation rows
  int threads = 1;
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
};

/// Buffers for products up to its limits, all taken at once. RunLinear allocates nothing itself;
/// oneDNN, which serves M > kMatvecRows, takes and frees packing buffers inside a call and keeps
/// nothing per shape.
class LinearWorkspace {
 public:
  /// Errors   kInvalidArgument for a size out of range; kUnsupported for an instruction set this
  /// CPU
  ///          lacks.
  /// Threads  the first call with max_rows > kMatvecRows also lowers oneDNN's instruction set to
  ///          what MANYHEAD_ISA names, for the whole process.
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

/// Products of the same activations x [M, cols] (row stride `x_stride`, elements) with several
/// weights. Called by every thread of a region; ends with a barrier. All weights have the same
/// cols.
///
/// Few rows (M <= kMatvecRows) go to the low-bit matvec; many to tiles of bf16 where the CPU has
/// them and the weights are low-bit, else, packed weights to the same matvec and others to oneDNN
/// on fixed panels of weight rows, which are widened to f32 panel by panel.
///
/// `first_math` is for row 0, which then may go another way than the rest.
///
/// Shapes   x [M, cols], M >= 0; y of each output [M, rows]. `x` is not read beyond cols.
/// Aliasing no y overlaps x, a weight, a bias or another y.
/// Accuracy a row of y is bitwise the same for every thread count, and for every M of the same kind
///          (matvec or many rows). kFast rounds activations to int8 with a scale for each 32
///          (blocks of 32) or 256 (K types): the error of a product is at most sum_c |weight[c]| *
///          s / 2 with s = max |x| of c's block / 127. A NaN or infinite activation then makes NaN.
///          Tiles round activations and weights to 8 bits of mantissa: at most 2^-7 sum_c
///          |weight[c] x[c]|.
void RunLinear(Worker& worker, LinearWorkspace& workspace, const float* x, std::int64_t x_stride,
               std::int64_t M, std::span<const LinearOutput> outputs,
               LinearMath math = LinearMath::kInt8,
               LinearMath first_math = LinearMath::kInt8) noexcept;

inline constexpr std::int64_t kMatvecRows = 8;  ///< most activation rows that are few

/// Widens row `row` of `weight` into out [cols].
void DequantizeRow(const WeightView& weight, Isa isa, std::int64_t row, float* out) noexcept;

/// The path that serves products of M rows of `weight`, for reports: e.g. "matvec int8 avx512",
/// "packed int8 avx512", "onednn f32", "tiles bf16 amx".
const char* LinearPathName(const WeightView& weight, Isa isa, MathMode math,
                           std::int64_t M) noexcept;

}  // namespace manyhead
