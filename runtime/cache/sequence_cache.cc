#include "runtime/cache/sequence_cache.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace manyhead {

Result<SequenceCache> CreateSequenceCache(KvCacheParams params, std::int64_t step,
                                          std::int64_t prefix_bytes) {
  const Result<std::int64_t> capacity = KvCapacityBytes(params, 1, params.max_tokens, step);
  if (!capacity.ok()) return capacity.status();
  const std::int64_t most = *capacity + std::min(prefix_bytes, INT64_MAX - *capacity);
  params.capacity_bytes = params.capacity_bytes == 0 ? most : std::min(most, params.capacity_bytes);
  Result<KvCache> cache = KvCache::Create(params);
  if (!cache.ok()) return cache.status();
  const Result<SequenceId> sequence = cache->CreateSequence();
  if (!sequence.ok()) return sequence.status();
  return SequenceCache{*std::move(cache), *sequence};
}

}  // namespace manyhead
