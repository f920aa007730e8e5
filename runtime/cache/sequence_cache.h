#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"

namespace manyhead {

/// A cache of one sequence.
struct SequenceCache {
  KvCache cache;
  SequenceId sequence;
};

/// Creates a cache with room for one sequence of params.max_tokens in steps of up to `step`, with
/// that sequence, and with `prefix_bytes` for cached prefixes. capacity_bytes of `params` is a
/// lower cap, unless it is 0.
Result<SequenceCache> CreateSequenceCache(KvCacheParams params, std::int64_t step,
                                          std::int64_t prefix_bytes = 0);

}  // namespace manyhead
