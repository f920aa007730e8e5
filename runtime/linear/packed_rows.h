#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/linear/linear_impl.h"

/// The activation rows of packed products: rows of one int8 number per activation, or accurate rows
/// in kParts parts, of which each is what the parts before it have rounded away.
///
/// An accurate row x is x1 + x2 with x1 = s1 * q1, x2 = s2 * q2 and q1, q2 in [-127, 127] for each
/// block of 32 or 256: the error of an activation is at most 1 / 254^2 of its block's largest, as
/// with 16 bits. Its product is (y1 + y2) + bias, where y1 and y2 are the products that any row
/// takes; so kernels know nothing of parts, and the bits are equal on every instruction set.
///
/// Cost: the integer operations of kParts rows, while weights are read once. One accurate row alone
/// fills half a tile of kSplitTile rows, and takes as long as kSplitTile rows that decode.

namespace manyhead::linear {

/// The activations of a packed product: all rows of `in`, or some of them in parts.
struct PackedRows {
  Activations in;
  std::span<const std::int64_t> accurate;  ///< rows of `in`, at most kMostAccurateRows; or none

  bool split() const noexcept { return !accurate.empty(); }
  /// Rows of int8 numbers.
  std::int64_t count() const noexcept { return split() ? SplitRows(std::ssize(accurate)) : in.M; }
};

/// Rounds rows [m, m + count) of `rows` as `outputs` want them, to rows `to` on. `rest` is a
/// thread's own.
void RoundRows(Isa isa, const PackedRows& rows, std::int64_t m, std::int64_t count,
               std::span<const LinearOutput> outputs, float* rest,
               const kernels::QuantizedRows& xq_32, const kernels::QuantizedRows& xq_256,
               std::int64_t to) noexcept;

/// Writes the products of the accurate rows with the weight's rows of `range`, at most kSplitPanel,
/// from those of their parts, y [rows.count(), kSplitPanel].
void AddParts(const PackedRows& rows, const RowRange& range, const float* y) noexcept;

/// Where a kernel writes the products of rows.count() rows with some of a weight's rows.
struct PackedTarget {
  float* y = nullptr;
  std::int64_t y_stride = 0;
  const float* bias = nullptr;
};

/// Calls multiply(range, target) for `item`, or for panels of it after which the parts' products,
/// which go to `split_y` [rows.count(), kSplitPanel] first, are added up.
template <class Multiply>
void ForEachPanel(const PackedRows& rows, const RowRange& item, float* split_y,
                  Multiply&& multiply) noexcept {
  const LinearOutput& output = *item.output;
  if (!rows.split()) {
    multiply(item, PackedTarget{rows.in.Out(output, 0, item.first), output.y_stride,
                                output.bias == nullptr ? nullptr : output.bias + item.first});
    return;
  }
  for (std::int64_t r = 0; r < item.count; r += kSplitPanel) {
    const RowRange panel = {&output, item.first + r, std::min(kSplitPanel, item.count - r)};
    multiply(panel, PackedTarget{split_y, kSplitPanel, nullptr});
    AddParts(rows, panel, split_y);
  }
}

}  // namespace manyhead::linear
