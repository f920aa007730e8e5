#pragma once

#include <string>

#include "kernels/kv_kernels.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/prefix_store.h"
#include "runtime/cache/sequence_store.h"

namespace manyhead {

/// Adds the sequences of a snapshot; see KvCache::Restore. Cached prefixes are evicted where there
/// is no room.
Result<KvRestored> RestoreSequences(PageStore& pages, SequenceStore& sequences,
                                    PrefixStore& prefixes, const kernels::KvKernels& kernels,
                                    const std::string& path, const KvRestoreOptions& options);

}  // namespace manyhead
