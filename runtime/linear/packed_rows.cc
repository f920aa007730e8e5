#include "runtime/linear/packed_rows.h"

namespace manyhead::linear {
namespace {

using kernels::ActivationBlock;
using kernels::QuantizedRows;

/// rest[c] = x[c] - what row `row` of `rounded` stands for, which f32 holds but for its own
/// rounding. A scale of NaN, which stands for activations that are not finite, stays NaN.
void TakeAway(const float* x, const QuantizedRows& rounded, std::int64_t row, std::int64_t block,
              std::int64_t cols, float* rest) noexcept {
  const std::int8_t* q = rounded.q + row * rounded.stride;
  const float* scales = rounded.scales + row * (rounded.stride / 32);
  for (std::int64_t c = 0; c < cols; c += block) {
    const double scale = scales[c / block];
    for (std::int64_t i = c; i < c + block; ++i)
      rest[i] = static_cast<float>(static_cast<double>(x[i]) - scale * q[i]);
  }
}

/// Rounds part `part` of x to row `to` of `out`.
template <class Round>
void RoundPart(Round round, const float* x, std::int64_t block, std::int64_t cols,
               std::int64_t part, float* rest, const QuantizedRows& out, std::int64_t to) noexcept {
  round(x, cols, out, to);
  for (std::int64_t p = 0; p < part; ++p) {
    TakeAway(p == 0 ? x : rest, out, to, block, cols, rest);
    round(rest, cols, out, to);
  }
}

}  // namespace

void RoundRows(Isa isa, const PackedRows& rows, std::int64_t m, std::int64_t count,
               std::span<const LinearOutput> outputs, float* rest, const QuantizedRows& xq_32,
               const QuantizedRows& xq_256, std::int64_t to) noexcept {
  if (!rows.split()) {
    Quantize(isa, rows.in.Rows(m, count), outputs, xq_32, xq_256, to);
    return;
  }
  const kernels::LinearKernels& kernels = *KernelsFor(isa).linear;
  const bool q32 = WantedByAny(isa, outputs, ActivationBlock::kQ32);
  const bool q256 = WantedByAny(isa, outputs, ActivationBlock::kQ256);
  const std::int64_t parts = std::ssize(rows.accurate) * kParts;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = std::min(m + i, parts - 1);  // rows that fill a tile repeat the last
    const float* x = rows.in.row(rows.accurate[static_cast<std::size_t>(at / kParts)]);
    const std::int64_t part = at % kParts;
    if (q32) RoundPart(kernels.quantize_32, x, 32, rows.in.cols, part, rest, xq_32, to + i);
    if (q256) RoundPart(kernels.quantize_256, x, 256, rows.in.cols, part, rest, xq_256, to + i);
  }
}

void AddParts(const PackedRows& rows, const RowRange& range, const float* y) noexcept {
  const LinearOutput& output = *range.output;
  for (const std::int64_t row : rows.accurate) {
    float* out = rows.in.Out(output, row, range.first);
    for (std::int64_t r = 0; r < range.count; ++r) {
      float sum = y[r];
      for (std::int64_t p = 1; p < kParts; ++p) sum += y[p * kSplitPanel + r];
      out[r] = output.bias == nullptr ? sum : sum + output.bias[range.first + r];
    }
    y += kParts * kSplitPanel;
  }
}

}  // namespace manyhead::linear
