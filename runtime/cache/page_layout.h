#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"

namespace manyhead {

/// Where keys and values of a head lie in a page of `page_size` tokens (see kernels/kv_layout.h).
kernels::KvPageLayout MakeKvPageLayout(const KvLayerShape& shape, KvType k_type, KvType v_type,
                                       std::int64_t page_size) noexcept;

/// `params` with every default filled in, if all but capacity_bytes, max_tokens and isa are in
/// range; `function` opens the message otherwise.
Result<KvCacheParams> ResolveKvShapes(const KvCacheParams& params, const char* function);

/// Bytes of one page of every layer and KV head: what a sequence takes for each page_size tokens.
/// `params` are resolved.
Result<std::int64_t> KvPageRowBytes(const KvCacheParams& params, const char* function);

}  // namespace manyhead
