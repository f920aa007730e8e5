#include "runtime/layer/feed_forward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

constexpr std::int64_t kActivationBlock =
    2048;  // elements of one item: enough to outweigh handing it out

/// The factors of plain blocks.
constexpr std::array<float, kActivationBlock> kOnes = [] {
  std::array<float, kActivationBlock> ones{};
  ones.fill(1);
  return ones;
}();

/// Computes out[i] = x Phi(x) up[i] with x = gate[i].
void GeluErfMul(const float* gate, const float* up, std::int64_t n, float* out) noexcept {
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = 0.5F * gate[i] * std::erfc(gate[i] * -0.70710678F) * up[i];
}

}  // namespace

void FeedForward::ProjectIn(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                            const float* x) const noexcept {
  const std::int64_t F = up->rows;
  const LinearOutput outputs[] = {{gate, gate_rows, F, gate_bias}, {up, up_rows, F, up_bias}};
  const std::span<const LinearOutput> all(outputs);
  RunLinear(worker, linear, x, up->cols, rows, kind == FeedForwardKind::kGated ? all : all.last(1));
}

void FeedForward::Activate(Worker& worker, const LinearRows& rows) const noexcept {
  const auto function = activation == Activation::kSilu       ? kernels->silu_mul
                        : activation == Activation::kGeluTanh ? kernels->gelu_mul
                                                              : &GeluErfMul;
  const std::int64_t elements = rows.count() * up->rows;
  worker.ForEach(CeilDiv(elements, kActivationBlock), [&](std::int64_t block) {
    const std::int64_t begin = block * kActivationBlock;
    const float* factor = kind == FeedForwardKind::kGated ? up_rows + begin : kOnes.data();
    float* x = activated() + begin;
    function(x, factor, std::min(kActivationBlock, elements - begin), x);
  });
}

void FeedForward::ProjectOut(Worker& worker, LinearWorkspace& linear, const LinearRows& rows,
                             float* y) const noexcept {
  const LinearOutput output[] = {{down, y, down->rows, down_bias}};
  RunLinear(worker, linear, activated(), down->cols, rows, output);
}

}  // namespace manyhead
