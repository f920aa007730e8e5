#include <algorithm>
#include <barrier>
#include <cstdint>

#include "tools/manyhead/machine.h"
#include "tools/manyhead/run_together.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

// Number of independent chains: enough for two FMA ports of latency 4 or 5 and few enough for 16
// registers.
constexpr int kChains = 12;
constexpr std::int64_t kSteps = 1 << 16;
constexpr int kPasses = 40;

template <int kLanes>
struct Vectors {
  typedef float Type __attribute__((vector_size(4 * kLanes)));
};

/// Multiplies and adds in vectors of `kLanes` numbers, fused where the caller's target supports it.
/// It is inlined into functions of different targets.
template <int kLanes>
[[gnu::always_inline]] inline float Spin(float start) {
  using Vector = typename Vectors<kLanes>::Type;
  Vector sum[kChains];
  const Vector a = Vector{} + 0.5F, b = Vector{} + start;
  for (Vector& x : sum) x = b;
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = sum[j] * a + b;
  }
  float total = 0;
  for (const Vector& y : sum) total += y[0];
  return total;
}

[[gnu::target("avx512f")]] float SpinAvx512(float start) { return Spin<16>(start); }
[[gnu::target("avx2,fma")]] float SpinAvx2(float start) { return Spin<8>(start); }
/// Multiplies and adds separately, as baseline x86-64 does.
float SpinBaseline(float start) { return Spin<4>(start); }

}  // namespace

double MeasureFlops(Isa isa, int threads) {
  const auto spin = isa >= Isa::kAvx512 ? SpinAvx512 : isa == Isa::kAvx2 ? SpinAvx2 : SpinBaseline;
  const std::int64_t lanes = isa >= Isa::kAvx512 ? 16 : isa == Isa::kAvx2 ? 8 : 4;
  std::int64_t best = 0;
  const int ran = RunTogether(std::max(1, threads), [&](int thread, int, std::barrier<>& barrier) {
    volatile float sink = 1;  // keeps the loop from being optimised away
    for (int pass = 0; pass < kPasses; ++pass) {
      barrier.arrive_and_wait();
      const std::int64_t start = SteadyNanoseconds();
      sink = spin(sink);
      barrier.arrive_and_wait();
      const std::int64_t taken = SteadyNanoseconds() - start;
      if (thread == 0 && (best == 0 || taken < best)) best = taken;
    }
  });
  const double flops = 2.0 * static_cast<double>(kSteps * kChains * lanes * ran);
  return best > 0 ? flops * 1e9 / static_cast<double>(best) : 0;
}

Roofline MeasureRoofline(Isa isa, int threads) {
  return {MeasureReadBandwidth(threads).bytes_per_second, MeasureFlops(isa, threads)};
}

}  // namespace manyhead::cli
