#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"

namespace manyhead::kernels {

struct KvKernels {
  /// Stores rows k [count, D] and v [count, Dv], `k_stride` and `v_stride` elements apart, as the
  /// tokens [first, first + count) of a page. It rounds to nearest even, overflows to infinity, and
  /// keeps a NaN a NaN (int8 and int4: the token's scale becomes NaN); bits are equal on every
  /// instruction set. It changes nothing else in the page, except that it sets the unused nibbles
  /// of its tokens' int4 bytes to 0.
  void (*store_rows)(const KvPageLayout& layout, std::byte* page, std::int64_t first,
                     std::int64_t count, const float* k, std::int64_t k_stride, const float* v,
                     std::int64_t v_stride);
  /// Reads one token of a page as f32: k [D], v [Dv]; either may be null.
  void (*load_row)(const KvPageLayout& layout, const std::byte* page, std::int64_t token, float* k,
                   float* v);
};

}  // namespace manyhead::kernels
