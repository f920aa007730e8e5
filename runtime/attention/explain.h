#pragma once

#include <cstdint>

#include "manyhead/attention.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// Explains how a run of one request of these lengths, which must be within the plan's, over a
/// cache of these types is done, and what it costs. The plan has `scratch_bytes` of memory.
AttentionExplanation ExplainAttention(const AttentionSetup& setup, std::int64_t scratch_bytes,
                                      KvType k_type, KvType v_type, std::int64_t q_len,
                                      std::int64_t kv_len);

}  // namespace manyhead
