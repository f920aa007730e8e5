#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/head_table.h"

namespace manyhead {

/// Where keys and values of a head lie in a page of `page_size` tokens (see kernels/kv_layout.h).
kernels::KvPageLayout MakeKvPageLayout(const KvLayerShape& shape, KvType k_type, KvType v_type,
                                       std::int64_t page_size) noexcept;

/// A head of a cache with pages of `page_size` tokens, but for its arena. `params` are valid.
KvHead MakeKvHead(const KvLayerShape& shape, const KvHeadParams& params,
                  std::int64_t page_size) noexcept;

/// Bytes that `page_size` tokens take in the head's pages; 0 where it is off.
std::int64_t KvRowBytes(const KvHead& head, std::int64_t page_size) noexcept;

/// Copies the tokens [first, first + count) of a page, bit for bit, to where they lie in another.
void CopyKvTokens(const kernels::KvPageLayout& layout, const std::byte* from, std::byte* to,
                  std::int64_t first, std::int64_t count) noexcept;

/// `params` with every default filled in, if all but capacity_bytes, max_tokens and isa are in
/// range; `function` opens the message otherwise.
Result<KvCacheParams> ResolveKvShapes(const KvCacheParams& params, const char* function);

}  // namespace manyhead
