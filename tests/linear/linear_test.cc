#include "runtime/linear/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
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

/// The types that weights and activations are rounded to before they are multiplied.
enum class Rounding { kNone, kInt8, kTwoInt8, kBf16 };

/// Exact: n f32 additions and products lose at most n eps of the sum of magnitudes; a vector
/// kernel's chains are n / 8 long or less, the scalar one's n. Fast: rounding an activation to a
/// multiple of s loses s / 2 of it; besides, each block adds three f32 roundings of its parts
/// before offsets cancel, each of at most four times the block's largest weight for every
/// activation. Two int8 numbers lose s / 2 of what the first has lost, s / 254 of it, and add
/// twice.
Reference Compute(const WeightView& weight, const float* row, const float* x, float bias, Isa isa,
                  Rounding to) {
  Reference out;
  double magnitude = std::fabs(bias), rounding = 0, parts = 0;
  const bool rounded = to == Rounding::kInt8 || to == Rounding::kTwoInt8;
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
  if (to == Rounding::kTwoInt8) {
    rounding /= 254;
    parts = parts * 2 + magnitude;
  }
  out.tolerance =
      rounded ? rounding + (n / 8 + 16) * kEpsilon * parts : chain * kEpsilon * magnitude;
  // Weight and activation are each off by up to half a unit of 8 bits, 2^-8.
  if (to == Rounding::kBf16) out.tolerance += 0x1p-7 * (1 + 0x1p-9) * magnitude;
  return out;
}

struct Shape {
  std::int64_t rows;
  std::int64_t blocks;  ///< blocks of the type; for plain numbers, columns = 17 * blocks
  std::int64_t M;
};

constexpr Shape kShapes[] = {{1, 1, 1},  {2, 3, 2},   {5, 2, 3},   {3, 7, 4},
                             {17, 5, 5}, {7, 1, 6},   {4, 2, 7},   {9, 4, 8},
                             {3, 3, 9},  {33, 2, 24}, {97, 1, 33}, {2, 7, 513}};

enum class Storage { kRows, kPacked };

constexpr RowRole kRoles[] = {RowRole::kPrefill, RowRole::kDecode};

const char* NameOf(RowRole role) { return role == RowRole::kDecode ? " decode" : " prefill"; }

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
  Rounding Rounded(RowRole role) const {
    const bool blocks = WeightBlockOf(type()).elements > 1;
    if (math() == MathMode::kExact) return Rounding::kNone;
    if (role == RowRole::kDecode) return blocks ? Rounding::kInt8 : Rounding::kNone;
    if (packed() && isa() != Isa::kScalar) return Rounding::kInt8;
    const bool tiles = isa() == Isa::kAmx && (blocks || type() == WeightType::kBf16);
    return tiles ? Rounding::kBf16 : Rounding::kNone;
  }
  std::int64_t Cols(std::int64_t blocks) const {
    const std::int64_t block = WeightBlockOf(type()).elements;
    return block == 1 ? 17 * blocks : block * blocks;
  }
  /// Returns the rounding of an accurate row.
  Rounding RoundedAccurately(RowRole role) const {
    if (Rounded(role) != Rounding::kInt8) return Rounded(role);
    return packed() && isa() != Isa::kScalar ? Rounding::kTwoInt8 : Rounding::kNone;
  }
  RunOptions Options(int threads = 1, RowRole role = RowRole::kPrefill) const {
    return {isa(), math(), threads, nullptr, role};
  }

  void ExpectRight(std::int64_t rows, std::int64_t cols, std::int64_t M, int threads) const {
    SCOPED_TRACE(Describe(type(), isa(), rows, cols, M));
    Weight weight(type(), rows, cols, 11);
    const Matrix x = Matrix::RandomRows(M, cols, 12);
    const std::vector<float> bias = Random(13).Vector(rows), w = weight.Widened();
    for (const RowRole role : kRoles) {
      RunOptions options = Options(threads, role);
      options.bias = bias.data();
      const Matrix y = Multiply(ViewOf(weight), x, options);
      for (std::int64_t m = 0; m < M; ++m) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const Reference expected =
              Compute(weight.view(), w.data() + r * cols, x.row(m),
                      bias[static_cast<std::size_t>(r)], isa(), Rounded(role));
          ASSERT_NEAR(y.row(m)[r], expected.value, expected.tolerance)
              << "m " << m << " r " << r << NameOf(role);
        }
      }
      EXPECT_TRUE(y.PaddingIntact());
    }
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
  for (std::int64_t M : {1, 3, 8, 30, 70})
    for (const RowRole role : kRoles) {
      const Matrix x = Matrix::RandomRows(M, weight.view().cols, 22);
      const Matrix one = Multiply(ViewOf(weight), x, Options(1, role));
      for (int threads : {2, 3, 5, 8})
        EXPECT_TRUE(one.Same(Multiply(ViewOf(weight), x, Options(threads, role))))
            << Describe(type(), isa(), 261, weight.view().cols, M) << " threads " << threads
            << NameOf(role);
    }
}

TEST_P(LinearTest, ARowDoesNotDependOnTheOthersOfItsRole) {
  Weight weight(type(), 13, Cols(9), 31);
  const Matrix x = Matrix::RandomRows(513, weight.view().cols, 32);
  for (const RowRole role : kRoles) {
    const auto first_rows = [&](std::int64_t M) {
      Matrix part(M, weight.view().cols, 0);
      for (std::int64_t m = 0; m < M; ++m) std::copy_n(x.row(m), weight.view().cols, part.row(m));
      return Multiply(ViewOf(weight), part, Options(1, role));
    };
    const Matrix many = first_rows(513);
    for (std::int64_t M :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 24, 25, 32, 33, 48, 64, 65, 129, 512}) {
      const Matrix y = first_rows(M);
      for (std::int64_t m = 0; m < M; ++m)
        ASSERT_TRUE(y.SameRow(m, many, m))
            << WeightTypeName(type()) << NameOf(role) << " M " << M << " m " << m;
    }
  }
}

/// Ascending numbers from `first` on.
std::vector<std::int64_t> Rows(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

/// One call for rows of both roles, some of them accurate, gives each what a call for it alone
/// gives, and an accurate row is right to about 16 bits of its activations.
TEST_P(LinearTest, RowsOfAMixedCallAreThoseOfEachAlone) {
  constexpr std::int64_t kRows = 37;
  Weight weight(type(), kRows, Cols(5), 33);
  const WeightView view = ViewOf(weight);
  const std::vector<float> w = weight.Widened();
  struct Mix {
    std::int64_t decode, prefill;
    std::vector<std::int64_t> accurate;
  };
  const Mix mixes[] = {
      {1, 0, {0}},           {0, 1, {0}},           {3, 2, {}},
      {5, 20, {5}},          {9, 3, {0, 1, 9}},     {70, 33, {4, 60, 68, 69, 70, 90}},
      {2, 2, {0, 1, 2, 3}},  {12, 0, Rows(0, 12)},  {3, 30, Rows(3, 30)},
      {0, 100, Rows(0, 64)}, {0, 150, Rows(9, 90)}, {1, 130, Rows(0, 131)}};
  for (const auto& [decode, prefill, accurate] : mixes) {
    const std::int64_t M = decode + prefill;
    const Matrix x = Matrix::RandomRows(M, view.cols, 34);
    Matrix y(M, view.rows, 2);
    const std::vector<float> bias = Random(35).Vector(view.rows);
    const LinearOutput output = {&view, y.data(), y.stride(), bias.data()};
    Result<LinearWorkspace> workspace = LinearWorkspace::Create({view.cols, M, 2, isa(), math()});
    ASSERT_TRUE(workspace.ok());
    RunTeam(2, [&](Worker& worker) {
      RunLinear(worker, *workspace, x.data(), x.stride(), {decode, prefill, accurate},
                {&output, 1});
    });
    EXPECT_TRUE(y.PaddingIntact());
    for (std::int64_t m = 0; m < M; ++m) {
      SCOPED_TRACE(Describe(type(), isa(), kRows, view.cols, M) + " m " + std::to_string(m));
      Matrix alone(1, view.cols, 0);
      std::copy_n(x.row(m), view.cols, alone.row(0));
      const RowRole role = m < decode ? RowRole::kDecode : RowRole::kPrefill;
      RunOptions options = Options(1, role);
      options.bias = bias.data();
      const bool is_accurate = std::binary_search(accurate.begin(), accurate.end(), m);
      if (is_accurate && RoundedAccurately(role) != Rounded(role)) {
        EXPECT_FALSE(y.SameRow(m, Multiply(view, alone, options), 0));
      }
      options.accurate = is_accurate;
      ASSERT_TRUE(y.SameRow(m, Multiply(view, alone, options), 0));
      const Rounding rounding = is_accurate ? RoundedAccurately(role) : Rounded(role);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const Reference expected = Compute(view, w.data() + r * view.cols, x.row(m),
                                           bias[static_cast<std::size_t>(r)], isa(), rounding);
        ASSERT_NEAR(y.row(m)[r], expected.value, expected.tolerance) << "r " << r;
      }
    }
  }
}

TEST_P(LinearTest, ZeroActivationsGiveTheBias) {
  Weight weight(type(), 5, Cols(3), 41);
  const std::vector<float> bias = Random(42).Vector(5);
  for (const RowRole role : kRoles) {
    const std::int64_t M = 10;
    Matrix x(M, weight.view().cols, 1);
    for (std::int64_t m = 0; m < M; ++m) std::fill_n(x.row(m), weight.view().cols, 0.0F);
    RunOptions options = Options(1, role);
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
    for (const RowRole role : kRoles) {
      const std::int64_t M = 10;
      Matrix x = Matrix::RandomRows(M, cols, 52);
      for (std::int64_t m = 0; m < M; ++m) {
        if (std::fabs(outlier) < 1) std::fill_n(x.row(m), cols, 0.0F);
        x.row(m)[cols / 2] = outlier;
      }
      const Matrix y = Multiply(ViewOf(weight), x, Options(1, role));
      for (std::int64_t r = 0; r < 6; ++r) {
        const Reference expected =
            Compute(weight.view(), w.data() + r * cols, x.row(0), 0, isa(), Rounded(role));
        // Denormal activations count as zero.
        EXPECT_NEAR(y.row(0)[r], expected.value, expected.tolerance + 1e-37)
            << outlier << NameOf(role);
      }
    }
  }
}

TEST_P(LinearTest, ANonFiniteActivationReachesItsOwnRowOnly) {
  Weight weight(type(), 6, Cols(3), 61);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()})
    for (const RowRole role : kRoles) {
      Matrix x = Matrix::RandomRows(3, weight.view().cols, 62);
      const Matrix before = Multiply(ViewOf(weight), x, Options(1, role));
      x.row(1)[weight.view().cols - 1] = bad;
      const Matrix after = Multiply(ViewOf(weight), x, Options(1, role));
      EXPECT_TRUE(after.SameRow(0, before, 0));
      EXPECT_TRUE(after.SameRow(2, before, 2));
      for (std::int64_t r = 0; r < 6; ++r)
        EXPECT_FALSE(std::isfinite(after.row(1)[r])) << r << NameOf(role);
    }
}

TEST_P(LinearTest, AnyWeightBytesAreRead) {
  Weight weight(type(), 5, Cols(3), 71);
  const auto run_all = [&] {
    for (std::int64_t M : {1, 2, 5, 9})
      for (const RowRole role : kRoles) {
        const Matrix x = Matrix::RandomRows(M, weight.view().cols, 72);
        EXPECT_TRUE(Multiply(ViewOf(weight), x, Options(1, role)).PaddingIntact());
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
    const RunOptions avx2 = {Isa::kAvx2, MathMode::kFast, 1, nullptr, RowRole::kDecode};
    const RunOptions avx512 = {Isa::kAvx512, MathMode::kFast, 1, nullptr, RowRole::kDecode};
    EXPECT_TRUE(Multiply(weight.view(), x, avx2).Same(Multiply(weight.view(), x, avx512)))
        << WeightTypeName(type);
  }
}

TEST(LinearOutputsTest, SharedActivationsGiveWhatSingleProductsGive) {
  const Isa isa = SupportedIsas().back();
  const Weight q(WeightType::kQ4_K, 70, 512, 91), k(WeightType::kQ5_0, 33, 512, 92),
      v(WeightType::kF16, 1, 512, 93);
  const std::vector<float> bias = Random(94).Vector(33);
  for (std::int64_t M : {1, 8, 50})
    for (const RowRole role : kRoles) {
      const Matrix x = Matrix::RandomRows(M, 512, 95);
      Matrix y_q(M, 70, 2), y_k(M, 33, 2), y_v(M, 1, 2);
      const LinearOutput outputs[] = {{&q.view(), y_q.data(), y_q.stride(), nullptr},
                                      {&k.view(), y_k.data(), y_k.stride(), bias.data()},
                                      {&v.view(), y_v.data(), y_v.stride(), nullptr}};
      Result<LinearWorkspace> workspace =
          LinearWorkspace::Create({1024, 64, 3, isa, MathMode::kFast});
      ASSERT_TRUE(workspace.ok());
      const LinearRows rows =
          role == RowRole::kDecode ? LinearRows{.decode = M} : LinearRows{.prefill = M};
      RunTeam(3, [&](Worker& worker) {
        RunLinear(worker, *workspace, x.data(), x.stride(), rows, outputs);
      });
      EXPECT_TRUE(y_q.Same(Multiply(q.view(), x, {isa, MathMode::kFast, 1, nullptr, role})));
      EXPECT_TRUE(y_k.Same(Multiply(k.view(), x, {isa, MathMode::kFast, 1, bias.data(), role})));
      EXPECT_TRUE(y_v.Same(Multiply(v.view(), x, {isa, MathMode::kFast, 1, nullptr, role})));
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
    RunLinear(worker, *workspace, x, 5, {}, {&output, 1});
    RunLinear(worker, *workspace, x, 5, {.decode = 1}, {});
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
  // A panel of weights, and a group of 16 rows, unpacked; padded rows of a panel's products, and of
  // activations, which the threads share.
  const std::int64_t thread = 96 * 1536 * 4 + 16 * 8960 / 32 * 34 + 24 * 96 * 4;
  const std::int64_t shared = 24 * 8960 * 4;
  EXPECT_EQ(size(1, 1, MathMode::kExact), thread + shared);
  EXPECT_EQ(size(4096, 3, MathMode::kExact), 3 * thread + shared);
  // Besides, for each row two int8 copies; four numbers of 4 bytes, two of 4 and one of 2 for each
  // 32, in whole cache lines.
  const std::int64_t row = 2 * 8960 + 4 * 1152 + 2 * 1152 + 576;
  EXPECT_EQ(size(1, 1, MathMode::kFast), size(1, 1, MathMode::kExact) + row);
  // More rows than a thread rounds for itself are shared, up to 64 of them.
  EXPECT_GT(size(9, 1, MathMode::kFast), size(8, 1, MathMode::kFast));
  EXPECT_EQ(size(64, 1, MathMode::kFast), size(4096, 1, MathMode::kFast));
}

TEST(LinearPathTest, TheNameFollowsRoleWeightMathAndIsa) {
  const struct {
    WeightType type;
    bool packed;
    Isa isa;
    MathMode math;
    const char* decode;
    const char* prefill;
  } cases[] = {
      {WeightType::kQ4_K, false, Isa::kScalar, MathMode::kFast, "matvec int8 scalar", "onednn f32"},
      {WeightType::kQ4_K, true, Isa::kScalar, MathMode::kFast, "matvec int8 scalar", "onednn f32"},
      {WeightType::kQ4_K, false, Isa::kAvx512, MathMode::kFast, "matvec int8 avx512", "onednn f32"},
      {WeightType::kQ4_K, true, Isa::kAvx2, MathMode::kFast, "packed int8 avx2",
       "packed int8 avx2"},
      {WeightType::kQ4_K, true, Isa::kAvx512, MathMode::kFast, "packed int8 avx512",
       "packed int8 avx512"},
      {WeightType::kQ4_K, true, Isa::kAmx, MathMode::kFast, "packed int8 amx", "packed int8 amx"},
      {WeightType::kQ8_0, false, Isa::kAmx, MathMode::kFast, "matvec int8 avx512",
       "tiles bf16 amx"},
      {WeightType::kQ4_K, true, Isa::kAmx, MathMode::kExact, "matvec f32 avx512", "onednn f32"},
      {WeightType::kQ4_K, false, Isa::kAvx2, MathMode::kExact, "matvec f32 avx2", "onednn f32"},
      {WeightType::kBf16, false, Isa::kAmx, MathMode::kFast, "matvec f32 avx512", "tiles bf16 amx"},
      // f16 weights are widened too, never handed to a library that may have only a slow path.
      {WeightType::kF16, false, Isa::kAmx, MathMode::kFast, "matvec f32 avx512", "onednn f32"},
      {WeightType::kF32, false, Isa::kScalar, MathMode::kFast, "matvec f32 scalar", "onednn f32"},
  };
  for (const auto& one : cases) {
    const WeightView view = {.type = one.type, .packed = one.packed};
    EXPECT_STREQ(LinearPathName(view, one.isa, one.math, RowRole::kDecode), one.decode);
    EXPECT_STREQ(LinearPathName(view, one.isa, one.math, RowRole::kPrefill), one.prefill);
    EXPECT_EQ(RolesAgree(view, one.isa, one.math), std::string(one.decode) == one.prefill);
  }
}

}  // namespace
}  // namespace manyhead
