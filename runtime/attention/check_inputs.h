#pragma once

#include <cstdint>

#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"

/// Validates the arguments of a run of attention. `function` begins the message of an error, and
/// every message names both values.

namespace manyhead {

/// Returns an error for a layer of the cache whose shape differs from that of a plan of `params`.
Status CheckAttentionLayer(const AttentionParams& params, const KvCache& cache, std::int64_t layer,
                           const char* function) noexcept;

/// Returns an error for prefix sums, sequences and queries that do not fit `cache`, for one
/// request: request `index` reads a sequence of `kv_len` tokens.
Status CheckAttentionSequence(const KvCache& cache, SequenceId sequence, std::int64_t index,
                              const std::int64_t* qo_indptr, const char* function) noexcept;

/// Returns an error for a bias or a mask that is shorter than `kv_len` keys.
Status CheckAttentionBias(const AttentionBias& bias, std::int64_t kv_len,
                          const char* function) noexcept;

/// Returns an error for plain tensors that a plan of `params` cannot run on: their sizes, lengths,
/// types and bias, and missing keys. Queries, values and outputs are checked by the calls that use
/// them.
Status CheckAttentionTensors(const AttentionParams& params, const AttentionTensors& tensors,
                             const char* function) noexcept;

}  // namespace manyhead
