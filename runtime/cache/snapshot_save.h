#pragma once

#include <span>
#include <string>

#include "manyhead/kv_cache.h"
#include "runtime/cache/cache_heads.h"
#include "runtime/cache/kv_sequence.h"

namespace manyhead {

/// Writes all data of `sequences` to a file; see KvCache::Save.
Status SaveSequences(const CacheHeads& heads, std::span<const KvSequence* const> sequences,
                     const std::string& path, const KvSnapshotInfo& info);

}  // namespace manyhead
