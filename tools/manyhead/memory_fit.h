#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/status.h"
#include "tools/manyhead/memory_sweep.h"

namespace manyhead::cli {

/// The questions of `memory --fit`.
struct FitFlags {
  std::int64_t bytes = 0;  ///< bytes that may be resident; 0 = no question
  bool contexts = false;   ///< the largest batch for each context of the cases
  bool batches = true;     ///< the largest context for each batch of the cases
  bool trained = false;    ///< the models say which context they are made for
};

/// For each model, type and policy of `cases` the largest context with each batch, then the largest
/// batch with each context, by the plan that the runtime allocates by: rows for PrintFits.
///
///   solved_for      "context" or "batch": which of the two is the answer; null where nothing fits
///   limited_by      "memory"; where any context fits "model" (what it is made for) or "positions"
///                   (learned ones); "planner" where it counts no further
///   left_bytes      of `bytes`, beside total_bytes
///   kv_cap_bytes    KvCacheParams::capacity_bytes, with which a cache holds that and no page more
///
/// Errors   those of PlanMemory.
Result<std::vector<Json>> FitAll(const std::vector<MemoryCase>& cases, const FitFlags& flags);

}  // namespace manyhead::cli
