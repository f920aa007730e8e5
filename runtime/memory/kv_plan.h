#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/status.h"
#include "runtime/cache/head_table.h"

namespace manyhead {

/// The tokens and pages that a head holds of a sequence after it has evicted all that it may.
struct Held {
  std::int64_t tokens = 0;
  std::int64_t pages = 0;
  bool evicted = false;  ///< it holds fewer tokens than the sequence has
};
Held HeldAfterEviction(const KvHead& head, std::int64_t length) noexcept;

struct KvHeadBytes {
  KvHead head;
  std::int64_t bytes_per_token = 0;  ///< KvCache::bytes_per_token(layer, head)
  std::int64_t page_bytes = 0;       ///< bytes of all pages of all sequences
  std::int64_t tokens = 0;           ///< tokens held of each sequence
};

/// The usage that KvCache::usage() will report.
struct KvPlan {
  std::vector<std::vector<KvHeadBytes>> heads;  ///< [layer][KV head]
  std::int64_t used_bytes = 0;
  std::int64_t table_bytes = 0;
  std::int64_t peak_bytes = 0;  ///< KvCapacityBytes
  std::int64_t bytes_per_token = 0;
};

/// Plans `sequences` sequences of params.max_tokens tokens, all appended in steps of up to `step`,
/// one step of each in turn, and evicted once at the end. capacity_bytes of `params` is ignored.
/// table_bytes is exact except for heads with a budget, where it is an upper bound.
/// Errors   as KvCapacityBytes.
Result<KvPlan> PlanKv(const KvCacheParams& params, std::int64_t sequences, std::int64_t step);

}  // namespace manyhead
