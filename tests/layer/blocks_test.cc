#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "runtime/layer/feed_forward.h"
#include "runtime/layer/norm.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/team.h"

/// The blocks of a layer against their formulas in double.

namespace manyhead {
namespace {

std::vector<float> Numbers(std::int64_t n, std::uint32_t seed, float spread = 1, float mean = 0) {
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525U + 1013904223U;
    numbers.push_back(mean + spread * (static_cast<float>(seed >> 8) * 0x1p-23F - 1));
  }
  return numbers;
}

std::vector<double> Reference(const Norm& norm, const std::vector<float>& x) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  if (norm.kind == NormKind::kLayer)
    for (const float v : x) mean += double{v} / n;
  for (const float v : x) square += (double{v} - mean) * (double{v} - mean) / n;
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double value = (double{x[i]} - mean) / std::sqrt(square + double{norm.eps});
    if (norm.kind == NormKind::kNone) value = double{x[i]};
    if (norm.kind != NormKind::kNone) value *= double{norm.scale[i]};
    if (norm.kind == NormKind::kLayer) value += double{norm.shift[i]};
    y.push_back(value);
  }
  return y;
}

TEST(NormTest, EveryKindEqualsItsFormula) {
  for (const Isa isa : SupportedIsas()) {
    const kernels::VectorKernels& kernels = *KernelsFor(isa).vector;
    for (const std::int64_t n : {1, 7, 8, 15, 16, 17, 33, 768}) {
      // A large mean: what is centred too late has lost its digits.
      for (const float mean : {0.0F, 100.0F}) {
        const std::vector<float> x = Numbers(n, 1, 2, mean), scale = Numbers(n, 2, 1, 1),
                                 shift = Numbers(n, 3);
        for (const NormKind kind : {NormKind::kNone, NormKind::kRms, NormKind::kLayer}) {
          const Norm norm{kind, scale.data(), shift.data(), 1e-5F};
          const std::vector<double> expected = Reference(norm, x);
          std::vector<float> out(x.size() + 1, -7), in_place = x;
          norm.Run(kernels, x.data(), n, out.data());
          norm.Run(kernels, in_place.data(), n, in_place.data());
          for (std::size_t i = 0; i < x.size(); ++i) {
            // Centring loses half a unit of the mean, which the norm divides by the spread.
            const double spread = n == 1 ? std::sqrt(1e-5) : 1;
            const double tolerance =
                kind == NormKind::kNone
                    ? 0
                    : 1e-5 * (1 + std::fabs(expected[i])) + 0x1p-23 * double{mean} / spread * 4;
            ASSERT_NEAR(out[i], expected[i], tolerance)
                << IsaName(isa) << " kind " << static_cast<int>(kind) << " n " << n << " at " << i;
            ASSERT_EQ(in_place[i], out[i]);
          }
          EXPECT_EQ(out.back(), -7);
        }
      }
    }
  }
}

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
  }
  return 0;
}

class FeedForwardTest : public ::testing::TestWithParam<std::tuple<FeedForwardKind, Activation>> {};

TEST_P(FeedForwardTest, EqualsItsFormula) {
  const auto& [kind, activation] = GetParam();
  constexpr std::int64_t d = 19, F = 1037;  // more than one block of activations in all rows
  const std::vector<float> gate = Numbers(F * d, 4, 0.8F), up = Numbers(F * d, 5, 0.8F),
                           down = Numbers(d * F, 6, 0.2F);
  const std::vector<float> gate_bias = Numbers(F, 7), up_bias = Numbers(F, 8),
                           down_bias = Numbers(d, 9);
  const auto view = [](const std::vector<float>& weights, std::int64_t rows, std::int64_t cols) {
    return WeightView{
        .rows = rows, .cols = cols, .data = reinterpret_cast<const std::byte*>(weights.data())};
  };
  const WeightView gate_view = view(gate, F, d), up_view = view(up, F, d),
                   down_view = view(down, d, F);
  const bool gated = kind == FeedForwardKind::kGated;
  for (const Isa isa : SupportedIsas())
    for (const bool biases : {false, true}) {
      const std::int64_t M = 5;
      const std::vector<float> x = Numbers(M * d, 10);
      // Plain blocks have no room for a gate.
      std::vector<float> gate_rows(gated ? M * F : 0), up_rows(M * F), y(M * d + 1, -7);
      FeedForward block;
      block.kind = kind;
      block.activation = activation;
      block.gate = gated ? &gate_view : nullptr;
      block.up = &up_view;
      block.down = &down_view;
      block.gate_bias = biases && gated ? gate_bias.data() : nullptr;
      block.up_bias = biases ? up_bias.data() : nullptr;
      block.down_bias = biases ? down_bias.data() : nullptr;
      block.gate_rows = gate_rows.data();
      block.up_rows = up_rows.data();
      block.kernels = KernelsFor(isa).vector;
      Result<LinearWorkspace> linear = LinearWorkspace::Create({F, M, 2, isa, MathMode::kExact});
      ASSERT_TRUE(linear.ok());
      const LinearRows rows = {.decode = 2, .prefill = 3};
      RunTeam(2, [&](Worker& worker) {
        block.ProjectIn(worker, *linear, rows, x.data());
        block.Activate(worker, rows);
        block.ProjectOut(worker, *linear, rows, y.data());
      });
      for (std::int64_t m = 0; m < M; ++m) {
        std::vector<double> inner;
        for (std::int64_t f = 0; f < F; ++f) {
          double g = biases ? double{gate_bias[f]} : 0, u = biases ? double{up_bias[f]} : 0;
          for (std::int64_t c = 0; c < d; ++c) {
            g += double{gate[f * d + c]} * double{x[m * d + c]};
            u += double{up[f * d + c]} * double{x[m * d + c]};
          }
          inner.push_back(gated ? Activated(activation, g) * u : Activated(activation, u));
        }
        for (std::int64_t r = 0; r < d; ++r) {
          double expected = biases ? double{down_bias[r]} : 0, magnitude = 1;
          for (std::int64_t f = 0; f < F; ++f) {
            expected += double{down[r * F + f]} * inner[f];
            magnitude += std::fabs(double{down[r * F + f]} * inner[f]);
          }
          ASSERT_NEAR(y[m * d + r], expected, 2e-6 * magnitude)
              << IsaName(isa) << " row " << m << " output " << r;
        }
      }
      EXPECT_EQ(y.back(), -7);
    }
}

std::string BlockName(
    const ::testing::TestParamInfo<std::tuple<FeedForwardKind, Activation>>& info) {
  static constexpr const char* kNames[] = {"silu", "gelu_tanh", "gelu"};
  const bool gated = std::get<0>(info.param) == FeedForwardKind::kGated;
  return std::string(gated ? "gated_" : "plain_") +
         kNames[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    , FeedForwardTest,
    ::testing::Combine(::testing::Values(FeedForwardKind::kGated, FeedForwardKind::kPlain),
                       ::testing::Values(Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kGelu)),
    BlockName);

}  // namespace
}  // namespace manyhead
