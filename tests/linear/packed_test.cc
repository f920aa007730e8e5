#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/kernel_table.h"
#include "runtime/linear/linear.h"
#include "runtime/linear/pack.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/isa.h"
#include "tests/linear/linear_testing.h"

namespace manyhead {
namespace {

using namespace linear_testing;  // NOLINT(google-build-using-namespace)
using kernels::PackedKernels;
using kernels::QuantizedRows;

TEST(PackTest, UnpackingGivesTheSameBytes) {
  for (WeightType type : kBlockTypes) {
    const WeightBlock block = WeightBlockOf(type);
    for (std::int64_t rows : {1, 3, 15, 16, 17, 40}) {
      const std::int64_t blocks = 5, row_bytes = blocks * block.bytes;
      Weight weight(type, rows, blocks * block.elements, 3);
      const WeightView packed = weight.Packed();
      for (std::int64_t first : {0, 1, 3})
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t n = blocks - first, bytes = n * block.bytes;
          const std::int64_t count = std::min<std::int64_t>({rows - r, 16 - r % 16, 5});
          std::vector<std::byte> out(static_cast<std::size_t>(count * bytes));
          UnpackRows(packed, r, count, first * block.elements, n * block.elements, out.data(),
                     bytes);
          for (std::int64_t i = 0; i < count; ++i)
            ASSERT_TRUE(
                std::equal(out.begin() + i * bytes, out.begin() + (i + 1) * bytes,
                           weight.bytes().begin() + (r + i) * row_bytes + first * block.bytes))
                << WeightTypeName(type) << " rows " << rows << " row " << r + i << " from "
                << first;
        }
    }
  }
}

TEST(PackTest, RowsThatDoNotExistAreZeros) {
  Weight weight(WeightType::kQ5_0, 3, 64, 4);
  weight.Fill(std::byte{0xff});
  const WeightView packed = weight.Packed();
  std::vector<std::byte> out(44);
  UnpackRows(packed, 15, 1, 0, 64, out.data(), 44);
  EXPECT_EQ(out, std::vector<std::byte>(44));
}

TEST(PackTest, OnlyWholeMatricesOfBlocksCanBePacked) {
  Weight q(WeightType::kQ4_K, 4, 512, 5), f(WeightType::kF16, 4, 512, 6);
  EXPECT_TRUE(CanPack(q.view()));
  EXPECT_FALSE(CanPack(f.view()));
  EXPECT_FALSE(CanPack(q.Packed()));
  EXPECT_FALSE(CanPack(WeightColumns(q.view(), 0, 256)));
}

TEST(PackTest, RowsAndColumnsOfAPackedWeightAreThoseOfTheWeight) {
  for (WeightType type : kBlockTypes) {
    const std::int64_t block = WeightBlockOf(type).elements;
    Weight weight(type, 50, 6 * block, 7);
    const WeightView part = WeightColumns(WeightRows(weight.Packed(), 16, 20), block, 3 * block);
    const WeightView same = WeightColumns(WeightRows(weight.view(), 16, 20), block, 3 * block);
    std::vector<float> a(static_cast<std::size_t>(3 * block)), b(a.size());
    for (std::int64_t r = 0; r < 20; ++r) {
      DequantizeRow(part, Isa::kScalar, r, a.data());
      DequantizeRow(same, Isa::kScalar, r, b.data());
      EXPECT_EQ(a, b) << WeightTypeName(type) << " row " << r;
    }
    const Matrix x = Matrix::RandomRows(3, 3 * block, 8);
    const RunOptions options = {SupportedIsas().back(), MathMode::kExact, 2, nullptr};
    EXPECT_TRUE(Multiply(part, x, options).Same(Multiply(same, x, options)));
  }
}

/// One rounded row.
struct RoundedRow {
  RoundedRow(const std::vector<float>& x, bool blocks_of_32) {
    const auto n = static_cast<std::int64_t>(x.size());
    rows = {q.data(),    scales.data(), scaled.data(), halves.data(),
            sums.data(), pairs.data(),  wide.data(),   1024};
    const kernels::LinearKernels& kernels = *KernelsFor(Isa::kAvx2).linear;
    (blocks_of_32 ? kernels.quantize_32 : kernels.quantize_256)(x.data(), n, rows, 0);
  }
  std::vector<std::int8_t> q = std::vector<std::int8_t>(1024);
  std::vector<float> scales = std::vector<float>(32), scaled = scales;
  std::vector<std::int32_t> sums = std::vector<std::int32_t>(32);
  std::vector<std::int16_t> halves = std::vector<std::int16_t>(64), pairs = halves, wide = halves;
  QuantizedRows rows;
};

/// Every variant that this CPU runs: dispatch takes one of each width only.
std::vector<std::pair<const char*, const PackedKernels*>> Variants() {
  std::vector<std::pair<const char*, const PackedKernels*>> variants;
  if (CpuRuns(Isa::kAvx2)) variants.emplace_back("avx2", &kernels::avx2::kPacked);
  if (CpuHasVnni(Isa::kAvx2)) variants.emplace_back("avx2_vnni", &kernels::avx2_vnni::kPacked);
  if (CpuRuns(Isa::kAvx512)) variants.emplace_back("avx512", &kernels::avx512::kPacked);
  if (CpuHasVnni(Isa::kAvx512))
    variants.emplace_back("avx512_vnni", &kernels::avx512_vnni::kPacked);
  return variants;
}

std::vector<float> MultiplyOne(const PackedKernels& kernels, const WeightView& packed,
                               const QuantizedRows& x) {
  std::vector<float> y(static_cast<std::size_t>(packed.rows));
  kernels.multiply[static_cast<int>(packed.type)]({packed.data, PackedGroupBytes(packed),
                                                   packed.rows, packed.cols, x, 1, y.data(),
                                                   packed.rows, nullptr});
  return y;
}

TEST(PackedVariantsTest, AllGiveTheSameBits) {
  if (!CpuRuns(Isa::kAvx2)) GTEST_SKIP() << "this CPU cannot run avx2";
  for (WeightType type : kBlockTypes) {
    Weight weight(type, 37, 1024, 11);
    const WeightView packed = weight.Packed();
    const RoundedRow x(Random(12).Vector(1024), WeightBlockOf(type).elements == 32);
    const std::vector<float> first = MultiplyOne(*Variants().front().second, packed, x.rows);
    for (const auto& [name, kernels] : Variants())
      EXPECT_EQ(MultiplyOne(*kernels, packed, x.rows), first)
          << WeightTypeName(type) << " " << name;
  }
}

/// All quants and activations at their ends, where 16-bit sums are largest.
TEST(PackedVariantsTest, LargestSumsDoNotOverflow) {
  if (!CpuRuns(Isa::kAvx2)) GTEST_SKIP() << "this CPU cannot run avx2";
  for (WeightType type : kBlockTypes) {
    for (int fill : {0x00, 0x7f, 0x80, 0xff}) {
      for (float sign : {1.0F, -1.0F}) {
        Weight weight(type, 16, 1024, 13);
        std::vector<std::byte> scales = weight.bytes();
        weight.Fill(static_cast<std::byte>(fill));
        const WeightBlock block = WeightBlockOf(type);
        const ScaleOffsets at = ScaleOffsetsOf(type);
        for (std::size_t b = 0; b < scales.size(); b += static_cast<std::size_t>(block.bytes))
          for (int offset : {at.d, at.min})
            if (offset >= 0)
              std::copy_n(scales.begin() + static_cast<std::ptrdiff_t>(b) + offset, 2,
                          weight.bytes().begin() + static_cast<std::ptrdiff_t>(b) + offset);
        // Every activation rounds to 127 or -127, exactly.
        const RoundedRow x(std::vector<float>(1024, sign * 127), block.elements == 32);
        const std::vector<float> w = weight.Widened();
        const WeightView packed = weight.Packed();
        for (const auto& [name, kernels] : Variants()) {
          const std::vector<float> y = MultiplyOne(*kernels, packed, x.rows);
          for (std::int64_t r = 0; r < 16; ++r) {
            double expected = 0, magnitude = 0;
            for (std::int64_t c = 0; c < 1024; ++c) {
              expected +=
                  static_cast<double>(w[static_cast<std::size_t>(r * 1024 + c)]) * sign * 127;
              magnitude += std::fabs(w[static_cast<std::size_t>(r * 1024 + c)]) * 127;
            }
            ASSERT_NEAR(y[static_cast<std::size_t>(r)], expected, 1e-5 * magnitude + 1e-3)
                << WeightTypeName(type) << " " << name << " fill " << fill << " row " << r;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace manyhead
