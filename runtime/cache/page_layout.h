#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"

namespace manyhead {

/// Returns the layout of a head's keys and values in a page of `page_size` tokens (see
/// kernels/kv_layout.h).
kernels::KvPageLayout MakeKvPageLayout(const KvLayerShape& shape, KvType k_type, KvType v_type,
                                       std::int64_t page_size) noexcept;

/// Copies the tokens [first, first + count) of a page, bit for bit, to the same place in another.
void CopyKvTokens(const kernels::KvPageLayout& layout, const std::byte* from, std::byte* to,
                  std::int64_t first, std::int64_t count) noexcept;

}  // namespace manyhead
