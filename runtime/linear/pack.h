#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/linear/linear.h"

/// Packs weights side by side, as kernels/linear_kernels.h describes packed groups: the same bytes
/// in another order.

namespace manyhead {

/// Returns true where products on this machine gain from packing a weight of this type.
bool CanPack(const WeightView& weight) noexcept;

/// Return the number of groups of `weight`, and the bytes of each; the last group counts missing
/// rows too.
std::int64_t PackedGroups(const WeightView& weight) noexcept;
std::int64_t PackedGroupBytes(const WeightView& weight) noexcept;

/// Writes group `group` of `weight`, which has the layout of files, to `out` [PackedGroupBytes].
/// Rows that do not exist become zeros.
void PackGroup(const WeightView& weight, std::int64_t group, std::byte* out) noexcept;

/// Writes the blocks of columns [first, first + cols) of rows [row, row + rows) of a packed weight,
/// all of one group, in the layout of files: the i-th row at out + i * out_stride bytes.
void UnpackRows(const WeightView& weight, std::int64_t row, std::int64_t rows, std::int64_t first,
                std::int64_t cols, std::byte* out, std::int64_t out_stride) noexcept;

}  // namespace manyhead
