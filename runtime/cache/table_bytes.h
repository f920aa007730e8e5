#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"

/// Computes the bytes of a cache's tables besides the tables of heads (KvHead::TableBytes) and the
/// lists of pages (PageArena::ListBytes). Plans and the cache itself use these functions.

namespace manyhead {

/// Returns the bytes of the tables that do not depend on the sequences.
std::int64_t FixedTableBytes(const KvCacheParams& params) noexcept;
/// Returns the bytes of the list of `sequences` sequences.
std::int64_t SlotTableBytes(std::int64_t sequences) noexcept;
/// Returns the bytes of one sequence over `heads` heads, without the entries of their tables.
std::int64_t SequenceTableBytes(std::int64_t heads) noexcept;

}  // namespace manyhead
