#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/types.h"
#include "runtime/linear/linear.h"
#include "runtime/linear/pack.h"
#include "runtime/platform/team.h"

namespace manyhead::linear_testing {

inline constexpr WeightType kAllTypes[] = {
    WeightType::kF32,  WeightType::kF16,  WeightType::kBf16, WeightType::kQ4_0, WeightType::kQ4_1,
    WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ2_K, WeightType::kQ3_K,
    WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};
/// Those in blocks, which can be packed.
inline constexpr std::span kBlockTypes = std::span(kAllTypes).subspan(3);
inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

inline bool CpuRuns(Isa isa) {
  const std::vector<Isa> supported = SupportedIsas();
  return std::find(supported.begin(), supported.end(), isa) != supported.end();
}

/// Uniform in [-1, 1), the same on every standard library.
class Random {
 public:
  explicit Random(std::uint32_t seed) : bits_(seed) {}
  float Next() { return static_cast<float>(bits_() >> 8) * 0x1p-23F - 1.0F; }
  std::byte NextByte() { return static_cast<std::byte>(bits_() >> 24); }
  std::vector<float> Vector(std::int64_t n) {
    std::vector<float> v(static_cast<std::size_t>(n));
    for (float& x : v) x = Next();
    return v;
  }

 private:
  std::mt19937 bits_;
};

/// Positions of a block's f16 scales in bytes; -1 = none.
struct ScaleOffsets {
  int d = -1;
  int min = -1;
};

inline ScaleOffsets ScaleOffsetsOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
    case WeightType::kQ8_0:
      return {0, -1};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108, -1};
    case WeightType::kQ6_K:
      return {208, -1};
    default:
      return {};
  }
}

/// A weight matrix in a buffer of exactly its size, so that a sanitizer sees a read beyond it.
class Weight {
 public:
  /// Random quants; scales between 2^-9 and 2^-8 of either sign, plain numbers below 1.
  Weight(WeightType type, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    const WeightBlock block = WeightBlockOf(type);
    bytes_.resize(static_cast<std::size_t>(rows * cols / block.elements * block.bytes));
    view_ = {type, rows, cols, bytes_.data()};
    Random random(seed);
    for (std::byte& b : bytes_) b = random.NextByte();
    const ScaleOffsets scales = ScaleOffsetsOf(type);
    for (std::size_t at = 0; at < bytes_.size(); at += static_cast<std::size_t>(block.bytes)) {
      std::byte* p = bytes_.data() + at;
      if (scales.d >= 0) SetTopByte(p + scales.d + 1, 0x7f, 0x1b);
      if (scales.min >= 0) SetTopByte(p + scales.min + 1, 0x7f, 0x1b);
      if (type == WeightType::kF16) SetTopByte(p + 1, 0x7f, 0x37);
      if (type == WeightType::kBf16) SetTopByte(p + 1, 0x7f, 0x3e);
      if (type == WeightType::kF32) SetTopByte(p + 3, 0x7f, 0x3e);
    }
  }

  const WeightView& view() const { return view_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  /// The same weights packed, in a buffer of exactly their size that lives until the next call.
  WeightView Packed() {
    const std::int64_t group = PackedGroupBytes(view_), groups = PackedGroups(view_);
    packed_.resize(static_cast<std::size_t>(group * groups));
    for (std::int64_t g = 0; g < groups; ++g) PackGroup(view_, g, packed_.data() + g * group);
    WeightView packed = view_;
    packed.data = packed_.data();
    packed.packed = true;
    return packed;
  }
  void Fill(std::byte value) { std::fill(bytes_.begin(), bytes_.end(), value); }

  /// The numbers the matrix stands for, by the reference kernels (which have golden values).
  std::vector<float> Widened(Isa isa = Isa::kScalar) const {
    std::vector<float> out(static_cast<std::size_t>(view_.rows * view_.cols));
    for (std::int64_t r = 0; r < view_.rows; ++r)
      DequantizeRow(view_, isa, r, out.data() + r * view_.cols);
    return out;
  }

 private:
  /// Keeps the sign bit.
  static void SetTopByte(std::byte* p, int mask, int value) {
    *p = (*p & ~static_cast<std::byte>(mask)) | static_cast<std::byte>(value);
  }

  std::vector<std::byte> bytes_, packed_;
  WeightView view_;
};

inline constexpr std::uint32_t kGuardBits = 0x7fc0dead;  ///< a NaN that no arithmetic produces

/// Rows with padding between them that holds a NaN, in a buffer that ends with the last row.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t cols, std::int64_t padding)
      : rows_(rows), cols_(cols), stride_(cols + padding) {
    values_.resize(static_cast<std::size_t>((rows - 1) * stride_ + cols));
    std::uint32_t bits = kGuardBits;
    for (float& v : values_) std::memcpy(&v, &bits, sizeof v);
  }
  static Matrix RandomRows(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    Matrix matrix(rows, cols, 3);
    Random random(seed);
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t c = 0; c < cols; ++c) matrix.row(m)[c] = random.Next();
    return matrix;
  }

  float* data() { return values_.data(); }
  const float* data() const { return values_.data(); }
  float* row(std::int64_t m) { return values_.data() + m * stride_; }
  const float* row(std::int64_t m) const { return values_.data() + m * stride_; }
  std::int64_t stride() const { return stride_; }
  std::int64_t rows() const { return rows_; }

  bool SameRow(std::int64_t m, const Matrix& other, std::int64_t other_m) const {
    return std::memcmp(row(m), other.row(other_m), static_cast<std::size_t>(cols_) * 4) == 0;
  }
  bool Same(const Matrix& other) const {
    return std::memcmp(data(), other.data(), values_.size() * 4) == 0;
  }
  bool PaddingIntact() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &values_[i], sizeof bits);
      if (static_cast<std::int64_t>(i) % stride_ >= cols_ && bits != kGuardBits) return false;
    }
    return true;
  }

 private:
  std::int64_t rows_, cols_, stride_;
  std::vector<float> values_;
};

struct RunOptions {
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kExact;
  int threads = 1;
  const float* bias = nullptr;
  RowRole role = RowRole::kPrefill;
  bool accurate = false;  ///< every row
};

/// M rows as `options` has them; `room` holds their numbers.
inline LinearRows RowsOf(std::int64_t M, const RunOptions& options,
                         std::vector<std::int64_t>& room) {
  LinearRows rows;
  (options.role == RowRole::kDecode ? rows.decode : rows.prefill) = M;
  room.resize(options.accurate ? static_cast<std::size_t>(M) : 0);
  std::iota(room.begin(), room.end(), std::int64_t{0});
  rows.accurate = room;
  return rows;
}

/// One product through a workspace of exactly its size.
inline Matrix Multiply(const WeightView& weight, const Matrix& x, const RunOptions& options) {
  Result<LinearWorkspace> workspace =
      LinearWorkspace::Create({weight.cols, x.rows(), options.threads, options.isa, options.math});
  Matrix y(x.rows(), weight.rows, 2);
  if (!workspace.ok()) return y;
  const LinearOutput output = {&weight, y.data(), y.stride(), options.bias};
  std::vector<std::int64_t> room;
  const LinearRows rows = RowsOf(x.rows(), options, room);
  RunTeam(options.threads, [&](Worker& worker) {
    RunLinear(worker, *workspace, x.data(), x.stride(), rows, {&output, 1});
  });
  return y;
}

inline std::string Describe(WeightType type, Isa isa, std::int64_t rows, std::int64_t cols,
                            std::int64_t M) {
  std::string text(WeightTypeName(type));
  text.append(" ").append(IsaName(isa));
  text.append(" rows ").append(std::to_string(rows)).append(" cols ").append(std::to_string(cols));
  return text.append(" M ").append(std::to_string(M));
}

}  // namespace manyhead::linear_testing
