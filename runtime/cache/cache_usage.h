#pragma once

#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_sequence.h"
#include "runtime/cache/page_store.h"

/// Counts bytes, pages and tokens in use.

namespace manyhead {

/// Returns the usage of the whole cache; a page that sequences share counts once.
KvUsage UsageOf(const PageStore& pages);
/// Returns the usage of one sequence; a page that it shares counts in full.
KvUsage UsageOf(const PageStore& pages, const KvSequence& sequence);
/// Returns what each head holds of one sequence, [layer][KV head].
std::vector<std::vector<KvHeadUsage>> HeadUsageOf(const CacheHeads& heads,
                                                  const KvSequence& sequence);

}  // namespace manyhead
