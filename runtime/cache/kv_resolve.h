#pragma once

#include "manyhead/kv_cache.h"

namespace manyhead {

/// Returns `params` with every default filled in, if all but capacity_bytes, max_tokens and isa are
/// in range; `function` begins the message otherwise.
Result<KvCacheParams> ResolveKvShapes(const KvCacheParams& params, const char* function);

/// Returns `params` with every default filled in, isa too, if they are valid for a cache.
///
/// Errors   those of KvCache::Create, except those of the system.
Result<KvCacheParams> ResolveKvCacheParams(const KvCacheParams& params);

}  // namespace manyhead
