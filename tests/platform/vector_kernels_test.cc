#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/platform/dispatch.h"
#include "tests/support/isas.h"

namespace manyhead {
namespace {

constexpr std::int64_t kSizes[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 640, 1537};
constexpr float kGuard = -12345.0F;

std::vector<float> RandomVector(std::int64_t n, unsigned seed, float range = 4) {
  std::mt19937 bits(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = range * (static_cast<float>(bits() >> 8) * 0x1p-23F - 1);
  return x;
}

/// A copy of x with a guard behind it that no kernel may change.
std::vector<float> Guarded(std::vector<float> x) {
  x.push_back(kGuard);
  return x;
}

class VectorKernels : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
    kernels_ = KernelsFor(GetParam()).vector;
  }

  /// Checks out[i] against expected(i) within `relative` of its size plus `absolute`, and the
  /// guard.
  template <class Expected>
  void Check(const std::vector<float>& out, Expected expected, double relative,
             double absolute = 0) {
    for (std::size_t i = 0; i + 1 < out.size(); ++i) {
      const double want = expected(i);
      ASSERT_NEAR(out[i], want, relative * std::abs(want) + absolute)
          << "element " << i << " of " << out.size() - 1;
    }
    ASSERT_EQ(out.back(), kGuard);
  }

  const kernels::VectorKernels* kernels_ = nullptr;
};

TEST_P(VectorKernels, RmsNormEqualsItsFormulaInDouble) {
  for (std::int64_t n : kSizes) {
    const auto x = RandomVector(n, 1), w = RandomVector(n, 2);
    double squares = 0;
    for (float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
    auto out = Guarded(x);  // in place
    kernels_->rms_norm(out.data(), w.data(), 1e-6F, n, out.data());
    Check(
        out, [&](std::size_t i) { return x[i] * factor * static_cast<double>(w[i]); }, 1e-6);
    out = Guarded(x);
    kernels_->rms_norm(x.data(), nullptr, 1e-6F, n, out.data());
    Check(
        out, [&](std::size_t i) { return x[i] * factor; }, 1e-6);
  }
}

TEST_P(VectorKernels, SumsAndProducts) {
  for (std::int64_t n : kSizes) {
    const auto x = RandomVector(n, 3), y = RandomVector(n, 4);
    auto out = Guarded(x);
    kernels_->add(out.data(), y.data(), n);
    Check(
        out, [&](std::size_t i) { return x[i] + y[i]; }, 0);
    out = Guarded(x);
    kernels_->scale(out.data(), 25.5F, n);
    Check(
        out, [&](std::size_t i) { return x[i] * 25.5F; }, 0);
  }
}

TEST_P(VectorKernels, ActivationsEqualTheirFormulasInDouble) {
  for (std::int64_t n : kSizes) {
    const auto g = RandomVector(n, 5, 30), u = RandomVector(n, 6);
    auto out = Guarded(g);
    kernels_->silu_mul(g.data(), u.data(), n, out.data());
    Check(
        out,
        [&](std::size_t i) { return g[i] / (1 + std::exp(-static_cast<double>(g[i]))) * u[i]; },
        1e-6, 1e-10);
    out = Guarded(g);
    kernels_->gelu_mul(g.data(), u.data(), n, out.data());
    Check(
        out,
        [&](std::size_t i) {
          const double x = g[i];
          return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) * u[i];
        },
        // tanh's argument is rounded to f32: an error of eps |u| in the exponent
        1e-5, 1e-6);
  }
}

TEST_P(VectorKernels, ActivationsOfExtremesAreFinite) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  const std::vector<float> g = {0, -0.0F, 1e-30F, -1e-30F, 100, -100, 1e6F, -1e6F, 1e18F, -1e18F};
  const std::vector<float> one(g.size(), 1);
  std::vector<float> out(g.size());
  kernels_->silu_mul(g.data(), one.data(), static_cast<std::int64_t>(g.size()), out.data());
  for (std::size_t i = 0; i < g.size(); ++i) {
    ASSERT_TRUE(std::isfinite(out[i])) << g[i];
    if (g[i] >= 100) {
      EXPECT_EQ(out[i], g[i]);
    } else if (g[i] <= -100) {
      EXPECT_NEAR(out[i], 0, 1e-20);
    }
  }
  const float huge[] = {kHuge, 1};
  kernels_->gelu_mul(huge, one.data(), 2, out.data());
  EXPECT_EQ(out[0], kHuge);
  EXPECT_NEAR(out[1], 0.8411919906, 1e-6);
}

TEST_P(VectorKernels, SoftcapEqualsItsFormulaInDouble) {
  for (std::int64_t n : kSizes) {
    const auto x = RandomVector(n, 7, 200);
    auto out = Guarded(x);
    kernels_->softcap(out.data(), 30, n);
    Check(
        out, [&](std::size_t i) { return 30 * std::tanh(static_cast<double>(x[i]) / 30); }, 0,
        1e-5);
  }
}

TEST_P(VectorKernels, BitsDoNotDependOnWhereARowIsCut) {
  const std::int64_t n = 100;
  const auto g = RandomVector(n, 8, 10), u = RandomVector(n, 9);
  std::vector<float> whole(n), parts(n);
  kernels_->silu_mul(g.data(), u.data(), n, whole.data());
  for (std::int64_t cut : {1, 7, 13, 50, 99}) {
    kernels_->silu_mul(g.data(), u.data(), cut, parts.data());
    kernels_->silu_mul(g.data() + cut, u.data() + cut, n - cut, parts.data() + cut);
    EXPECT_EQ(parts, whole) << "cut at " << cut;
  }
}

TEST_P(VectorKernels, RopeRotatesPairsOfEitherConvention) {
  for (std::int64_t half : {1, 2, 5, 8, 16, 20, 33}) {
    const auto x = RandomVector(2 * half, 10), angle = RandomVector(half, 11);
    std::vector<float> cosine(half), sine(half);
    for (std::int64_t i = 0; i < half; ++i) {
      cosine[i] = std::cos(angle[i]);
      sine[i] = std::sin(angle[i]);
    }
    const auto rotated = [&](std::int64_t a, std::int64_t b, std::int64_t i, bool first) {
      return first ? double{x[a]} * cosine[i] - double{x[b]} * sine[i]
                   : double{x[a]} * sine[i] + double{x[b]} * cosine[i];
    };
    auto out = Guarded(x);
    kernels_->rope_half_split(out.data(), cosine.data(), sine.data(), half);
    Check(
        out,
        [&](std::size_t j) {
          const std::int64_t i = static_cast<std::int64_t>(j) % half;
          return rotated(i, i + half, i, static_cast<std::int64_t>(j) < half);
        },
        0, 2e-6);
    out = Guarded(x);
    kernels_->rope_interleaved(out.data(), cosine.data(), sine.data(), half);
    Check(
        out,
        [&](std::size_t j) {
          const std::int64_t i = static_cast<std::int64_t>(j) / 2;
          return rotated(2 * i, 2 * i + 1, i, j % 2 == 0);
        },
        0, 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, VectorKernels, ::testing::ValuesIn(kEveryIsa), IsaTestName);

}  // namespace
}  // namespace manyhead
