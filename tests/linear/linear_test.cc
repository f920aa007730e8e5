#include "runtime/linear/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/linear/linear_testing.h"

namespace manyhead {
namespace {

using namespace linear_testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

constexpr double kEpsilon = 0x1p-24;

std::int64_t ScaleBlock(WeightType type) { return WeightBlockOf(type).elements; }

/// Products of the widened weights in double, and how far a right result may be from them.
struct Reference {
  double value = 0;
  double tolerance = 0;
};

/// What weights and activations are rounded to before they are multiplied.
enum class Rounding { kNone, kInt8, kBf16 };

/// Exact: n f32 additions and products lose at most n eps of the sum of magnitudes; a vector
/// kernel's chains are n / 8 long or less, the scalar one's n. Fast: rounding an activation to a
/// multiple of s loses s / 2 of it; besides, each block adds three f32 roundings of its parts
/// before offsets cancel, each of at most four times the block's largest weight for every
/// activation.
Reference Compute(const WeightView& weight, const float* row, const float* x, float bias, Isa isa,
                  Rounding to) {
  Reference out;
  double magnitude = std::fabs(bias), rounding = 0, parts = 0;
  const bool rounded = to == Rounding::kInt8;
  const std::int64_t block = rounded ? ScaleBlock(weight.type) : weight.cols;
  for (std::int64_t c0 = 0; c0 < weight.cols; c0 += block) {
    double x_max = 0, w_max = 0, w_sum = 0, x_sum = 0;
    for (std::int64_t c = c0; c < c0 + block; ++c) {
      const double w = row[c], v = x[c];
      out.value += w * v;
      magnitude += std::fabs(w * v);
      x_max = std::max(x_max, std::fabs(v));
      w_max = std::max(w_max, std::fabs(w));
      w_sum += std::fabs(w);
      x_sum += std::fabs(v);
    }
    rounding += w_sum * x_max / 127 / 2 * (1 + 1e-5);
    parts += 4 * w_max * (x_sum + static_cast<double>(block) * x_max / 254);
  }
  out.value += bias;
  const double n = static_cast<double>(weight.cols);
  const double chain = isa == Isa::kScalar ? n + 2 : n / 8 + 16;
  out.tolerance =
      rounded ? rounding + (n / 8 + 16) * kEpsilon * parts : chain * kEpsilon * magnitude;
  // Weight and activation are each off by up to half a unit of 8 bits, 2^-8.
  if (to == Rounding::kBf16) out.tolerance += 0x1p-7 * (1 + 0x1p-9) * magnitude;
  return out;
}

struct Shape {
  std::int64_t rows;
  std::int64_t blocks;  ///< of the type; for plain numbers, columns = 17 * blocks
  std::int64_t M;
};

constexpr Shape kShapes[] = {{1, 1, 1},  {2, 3, 2},   {5, 2, 3},   {3, 7, 4},
                             {17, 5, 5}, {7, 1, 6},   {4, 2, 7},   {9, 4, 8},
                             {3, 3, 9},  {33, 2, 24}, {97, 1, 33}, {2, 7, 513}};

enum class Storage { kRows, kPacked };

using Case = std::tuple<Isa, WeightType, MathMode, Storage>;

class LinearTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!CpuRuns(isa())) GTEST_SKIP() << "this CPU cannot run " << IsaName(isa());
  }
  bool packed() const { return std::get<3>(GetParam()) == Storage::kPacked; }
  /// The weights as this test stores them.
  WeightView ViewOf(Weight& weight) const { return packed() ? weight.Packed() : weight.view(); }
  Isa isa() const { return std::get<0>(GetParam()); }
  WeightType type() const { return std::get<1>(GetParam()); }
  MathMode math() const { return std::get<2>(GetParam()); }
  Rounding Rounded(std::int64_t M) const {
    const bool blocks = WeightBlockOf(type()).elements > 1;
    if (math() == MathMode::kExact) return Rounding::kNone;
    if (M <= kMatvecRows) return blocks ? Rounding::kInt8 : Rounding::kNone;
    if (packed() && (isa() == Isa::kAvx2 || isa() == Isa::kAvx512)) return Rounding::kInt8;
    const bool tiles = isa() == Isa::kAmx && (blocks || type() == WeightType::kBf16);
    return tiles ? Rounding::kBf16 : Rounding::kNone;
  }
  std::int64_t Cols(std::int64_t blocks) const {
    const std::int64_t block = WeightBlockOf(type()).elements;
    return block == 1 ? 17 * blocks : block * blocks;
  }
  RunOptions Options(int threads = 1) const { return {isa(), math(), threads, nullptr}; }

  void ExpectRight(std::int64_t rows, std::int64_t cols, std::int64_t M, int threads) const {
    SCOPED_TRACE(Describe(type(), isa(), rows, cols, M));
    Weight weight(type(), rows, cols, 11);
    const Matrix x = Matrix::RandomRows(M, cols, 12);
    const std::vector<float> bias = Random(13).Vector(rows), w = weight.Widened();
    RunOptions options = Options(threads);
    options.bias = bias.data();
    const Matrix y = Multiply(ViewOf(weight), x, options);
    for (std::int64_t m = 0; m < M; ++m) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const Reference expected = Compute(weight.view(), w.data() + r * cols, x.row(m),
                                           bias[static_cast<std::size_t>(r)], isa(), Rounded(M));
        ASSERT_NEAR(y.row(m)[r], expected.value, expected.tolerance) << "m " << m << " r " << r;
      }
    }
    EXPECT_TRUE(y.PaddingIntact());
  }
};

TEST_P(LinearTest, EqualsTheProductOfWidenedWeights) {
  for (const Shape& shape : kShapes) ExpectRight(shape.rows, Cols(shape.blocks), shape.M, 2);
}

TEST_P(LinearTest, SeveralPanelsAndColumnChunks) {
  ExpectRight(/*rows=*/131, /*cols=*/2048, /*M=*/26, /*threads=*/2);
  ExpectRight(/*rows=*/131, /*cols=*/2048, /*M=*/3, /*threads=*/2);
}

TEST_P(LinearTest, SameBitsForEveryThreadCount) {
  Weight weight(type(), 261, Cols(8), 21);
  for (std::int64_t M : {1, 3, 8, 30}) {
    const Matrix x = Matrix::RandomRows(M, weight.view().cols, 22);
    const Matrix one = Multiply(ViewOf(weight), x, Options(1));
    for (int threads : {2, 3, 5, 8})
      EXPECT_TRUE(one.Same(Multiply(ViewOf(weight), x, Options(threads))))
          << Describe(type(), isa(), 261, weight.view().cols, M) << " threads " << threads;
  }
}

TEST_P(LinearTest, ARowDoesNotDependOnTheOthersOfItsKind) {
  Weight weight(type(), 13, Cols(9), 31);
  const Matrix x = Matrix::RandomRows(513, weight.view().cols, 32);
  const auto first_rows = [&](std::int64_t M) {
    Matrix part(M, weight.view().cols, 0);
    for (std::int64_t m = 0; m < M; ++m) std::copy_n(x.row(m), weight.view().cols, part.row(m));
    return Multiply(ViewOf(weight), part, Options());
  };
  const Matrix eight = first_rows(8), many = first_rows(513);
  for (std::int64_t M = 1; M < 8; ++M) {
    const Matrix y = first_rows(M);
    for (std::int64_t m = 0; m < M; ++m)
      EXPECT_TRUE(y.SameRow(m, eight, m)) << WeightTypeName(type()) << " M " << M << " m " << m;
  }
  for (std::int64_t M : {9, 16, 23, 24, 25, 32, 33, 48, 100, 128, 256, 500, 512}) {
    const Matrix y = first_rows(M);
    for (std::int64_t m = 0; m < M; ++m)
      ASSERT_TRUE(y.SameRow(m, many, m)) << WeightTypeName(type()) << " M " << M << " m " << m;
  }
}

TEST_P(LinearTest, ZeroActivationsGiveTheBias) {
  Weight weight(type(), 5, Cols(3), 41);
  const std::vector<float> bias = Random(42).Vector(5);
  for (std::int64_t M : {1, 10}) {
    Matrix x(M, weight.view().cols, 1);
    for (std::int64_t m = 0; m < M; ++m) std::fill_n(x.row(m), weight.view().cols, 0.0F);
    RunOptions options = Options();
    options.bias = bias.data();
    const Matrix y = Multiply(ViewOf(weight), x, options);
    for (std::int64_t m = 0; m < M; ++m)
      for (std::int64_t r = 0; r < 5; ++r)
        EXPECT_EQ(y.row(m)[r], bias[static_cast<std::size_t>(r)]);
  }
}

TEST_P(LinearTest, ExtremeActivations) {
  Weight weight(type(), 6, Cols(2), 51);
  const std::vector<float> w = weight.Widened();
  const std::int64_t cols = weight.view().cols;
  for (float outlier : {1e30F, -1e-30F, 1e-40F, -3e-39F}) {
    for (std::int64_t M : {2, 10}) {
      Matrix x = Matrix::RandomRows(M, cols, 52);
      for (std::int64_t m = 0; m < M; ++m) {
        if (std::fabs(outlier) < 1) std::fill_n(x.row(m), cols, 0.0F);
        x.row(m)[cols / 2] = outlier;
      }
      const Matrix y = Multiply(ViewOf(weight), x, Options());
      for (std::int64_t r = 0; r < 6; ++r) {
        const Reference expected =
            Compute(weight.view(), w.data() + r * cols, x.row(0), 0, isa(), Rounded(M));
        // Denormal activations count as zero.
        EXPECT_NEAR(y.row(0)[r], expected.value, expected.tolerance + 1e-37)
            << outlier << " M " << M;
      }
    }
  }
}

TEST_P(LinearTest, ANonFiniteActivationReachesItsOwnRowOnly) {
  Weight weight(type(), 6, Cols(3), 61);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    Matrix x = Matrix::RandomRows(3, weight.view().cols, 62);
    const Matrix before = Multiply(ViewOf(weight), x, Options());
    x.row(1)[weight.view().cols - 1] = bad;
    const Matrix after = Multiply(ViewOf(weight), x, Options());
    EXPECT_TRUE(after.SameRow(0, before, 0));
    EXPECT_TRUE(after.SameRow(2, before, 2));
    for (std::int64_t r = 0; r < 6; ++r) EXPECT_FALSE(std::isfinite(after.row(1)[r])) << r;
  }
}

TEST_P(LinearTest, AnyWeightBytesAreRead) {
  Weight weight(type(), 5, Cols(3), 71);
  const auto run_all = [&] {
    for (std::int64_t M : {1, 2, 5, 9}) {
      const Matrix x = Matrix::RandomRows(M, weight.view().cols, 72);
      EXPECT_TRUE(Multiply(ViewOf(weight), x, Options()).PaddingIntact());
    }
  };
  for (int value : {0xff, 0x00, 0x7f, 0x80}) {
    weight.Fill(static_cast<std::byte>(value));
    run_all();
  }
  Random random(73);
  for (std::byte& b : weight.bytes()) b = random.NextByte();
  run_all();
}

INSTANTIATE_TEST_SUITE_P(Every, LinearTest,
                         ::testing::Combine(::testing::ValuesIn(kAllIsas),
                                            ::testing::ValuesIn(kAllTypes),
                                            ::testing::Values(MathMode::kExact, MathMode::kFast),
                                            ::testing::Values(Storage::kRows)),
                         [](const auto& test) {
                           return std::string(WeightTypeName(std::get<1>(test.param)))
                               .append(std::get<2>(test.param) == MathMode::kExact ? "_exact_"
                                                                                   : "_fast_")
                               .append(IsaName(std::get<0>(test.param)));
                         });

INSTANTIATE_TEST_SUITE_P(Packed, LinearTest,
                         ::testing::Combine(::testing::ValuesIn(kAllIsas),
                                            ::testing::ValuesIn(kBlockTypes),
                                            ::testing::Values(MathMode::kExact, MathMode::kFast),
                                            ::testing::Values(Storage::kPacked)),
                         [](const auto& test) {
                           return std::string(WeightTypeName(std::get<1>(test.param)))
                               .append(std::get<2>(test.param) == MathMode::kExact ? "_exact_"
                                                                                   : "_fast_")
                               .append(IsaName(std::get<0>(test.param)));
                         });

TEST(LinearIsaTest, FastProductsOfAvx2AndAvx512HaveTheSameBits) {
  if (!CpuRuns(Isa::kAvx512)) GTEST_SKIP() << "this CPU cannot run avx512";
  for (WeightType type : kAllTypes) {
    if (WeightBlockOf(type).elements == 1) continue;
    const Weight weight(type, 7, 5 * WeightBlockOf(type).elements, 81);
    const Matrix x = Matrix::RandomRows(7, weight.view().cols, 82);
    EXPECT_TRUE(Multiply(weight.view(), x, {Isa::kAvx2, MathMode::kFast, 1, nullptr})
                    .Same(Multiply(weight.view(), x, {Isa::kAvx512, MathMode::kFast, 1, nullptr})))
        << WeightTypeName(type);
  }
}

TEST(LinearOutputsTest, SharedActivationsGiveWhatSingleProductsGive) {
  const Isa isa = SupportedIsas().back();
  const Weight q(WeightType::kQ4_K, 70, 512, 91), k(WeightType::kQ5_0, 33, 512, 92),
      v(WeightType::kF16, 1, 512, 93);
  const std::vector<float> bias = Random(94).Vector(33);
  for (std::int64_t M : {1, 8, 50}) {
    const Matrix x = Matrix::RandomRows(M, 512, 95);
    Matrix y_q(M, 70, 2), y_k(M, 33, 2), y_v(M, 1, 2);
    const LinearOutput outputs[] = {{&q.view(), y_q.data(), y_q.stride(), nullptr},
                                    {&k.view(), y_k.data(), y_k.stride(), bias.data()},
                                    {&v.view(), y_v.data(), y_v.stride(), nullptr}};
    Result<LinearWorkspace> workspace =
        LinearWorkspace::Create({1024, 64, 3, isa, MathMode::kFast});
    ASSERT_TRUE(workspace.ok());
    RunTeam(3, [&](Worker& worker) {
      RunLinear(worker, *workspace, x.data(), x.stride(), M, outputs);
    });
    EXPECT_TRUE(y_q.Same(Multiply(q.view(), x, {isa, MathMode::kFast, 1, nullptr})));
    EXPECT_TRUE(y_k.Same(Multiply(k.view(), x, {isa, MathMode::kFast, 1, bias.data()})));
    EXPECT_TRUE(y_v.Same(Multiply(v.view(), x, {isa, MathMode::kFast, 1, nullptr})));
  }
}

TEST(LinearOutputsTest, NoRowsOrNoOutputsDoNothing) {
  const Weight weight(WeightType::kF32, 3, 5, 96);
  Result<LinearWorkspace> workspace =
      LinearWorkspace::Create({5, 1, 2, Isa::kScalar, MathMode::kFast});
  ASSERT_TRUE(workspace.ok());
  Matrix y(1, 3, 0), untouched(1, 3, 0);
  const LinearOutput output = {&weight.view(), y.data(), 3, nullptr};
  const float x[5] = {};
  RunTeam(2, [&](Worker& worker) {
    RunLinear(worker, *workspace, x, 5, 0, {&output, 1});
    RunLinear(worker, *workspace, x, 5, 1, {});
  });
  EXPECT_TRUE(y.Same(untouched));
}

TEST(LinearWorkspaceTest, RefusesSizesOutOfRange) {
  const auto message = [](LinearLimits limits) {
    return LinearWorkspace::Create(limits).status().message();
  };
  EXPECT_EQ(message({0, 1, 1, Isa::kScalar, MathMode::kFast}),
            "LinearWorkspace: max_cols = 0; expected 1 to 2147483648");
  EXPECT_EQ(message({1, -3, 1, Isa::kScalar, MathMode::kFast}),
            "LinearWorkspace: max_rows = -3; expected 1 to 2147483648");
  EXPECT_EQ(message({1, 1, 0, Isa::kScalar, MathMode::kFast}),
            "LinearWorkspace: threads = 0; expected 1 to 1024");
  if (!CpuRuns(Isa::kAvx512)) {
    EXPECT_THAT(message({1, 1, 1, Isa::kAvx512, MathMode::kFast}),
                HasSubstr("isa = avx512; this CPU runs at most"));
  }
}

TEST(LinearWorkspaceTest, SizeGrowsWithThreadsAndRows) {
  const auto size = [](std::int64_t max_rows, int threads, MathMode math) {
    return LinearWorkspace::Create({8960, max_rows, threads, Isa::kScalar, math})->size_bytes();
  };
  // A group of 16 rows, unpacked.
  EXPECT_EQ(size(8, 1, MathMode::kExact), 16 * 8960 / 32 * 34);
  EXPECT_EQ(size(1, 2, MathMode::kFast), 2 * size(1, 1, MathMode::kFast));
  // Besides, two int8 copies; four numbers of 4 bytes, two of 4 and one of 2 for each 32, in whole
  // cache lines.
  EXPECT_EQ(size(1, 1, MathMode::kFast),
            size(1, 1, MathMode::kExact) + 2 * 8960 + 4 * 1152 + 2 * 1152 + 576);
  EXPECT_GT(size(9, 1, MathMode::kExact), 0);
  EXPECT_EQ(size(9, 1, MathMode::kExact), size(4096, 1, MathMode::kExact));
}

TEST(LinearPathTest, NamesWhatRuns) {
  EXPECT_STREQ(LinearPathName({.type = WeightType::kQ4_K}, Isa::kAvx512, MathMode::kFast, 8),
               "matvec int8 avx512");
  EXPECT_STREQ(LinearPathName({.type = WeightType::kQ4_K}, Isa::kAvx2, MathMode::kExact, 1),
               "matvec f32 avx2");
  EXPECT_STREQ(LinearPathName({.type = WeightType::kF16}, Isa::kScalar, MathMode::kFast, 1),
               "matvec f32 scalar");
  // f16 weights are widened too, never handed to a library that may have only a slow path for them.
  EXPECT_STREQ(LinearPathName({.type = WeightType::kF16}, Isa::kAvx2, MathMode::kFast, 9),
               "onednn f32");
  EXPECT_STREQ(LinearPathName({.type = WeightType::kF16}, Isa::kAmx, MathMode::kFast, 9),
               "onednn f32");
  EXPECT_STREQ(LinearPathName({.type = WeightType::kQ4_K}, Isa::kAmx, MathMode::kFast, 9),
               "tiles bf16 amx");
  EXPECT_STREQ(LinearPathName({.type = WeightType::kQ4_K}, Isa::kAmx, MathMode::kExact, 9),
               "onednn f32");
}

}  // namespace
}  // namespace manyhead
