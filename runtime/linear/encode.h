#pragma once

#include <cstddef>
#include <cstdint>

#include "manyhead/types.h"

namespace manyhead {

/// Returns true where EncodeWeights makes weights of this type: F32, F16, BF16, Q8_0 and Q4_0.
bool CanEncode(WeightType type) noexcept;

/// Writes `count` numbers, a multiple of the type's block, to `out` as weights of `type`. Halves
/// are rounded to the nearest, ties to even. A low-bit block has the scale that gives its largest
/// magnitude the type's largest quant:
///
///     Q8_0   scale = max |x| / 127, quant = x / scale rounded to the nearest
///     Q4_0   scale = m / -8 with m the number of largest magnitude, quant = floor(x / scale + 8.5)
///            kept within 0..15
///
/// Quants are computed with the scale in f32; the block stores it in f16. Numbers that are not
/// finite make a block without sense, never a fault.
/// Source   the block layouts of GGUF
void EncodeWeights(WeightType type, const float* x, std::int64_t count, std::byte* out) noexcept;

/// Returns the element `index` of weights of F32, F16 or BF16 at any address.
float LoadWeight(WeightType type, const std::byte* data, std::int64_t index) noexcept;

}  // namespace manyhead
