#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "manyhead/attention.h"
#include "runtime/attention/partition.h"

namespace manyhead {

/// What stays the same from run to run of a plan: its parameters, its kernels and how it cuts work.
struct AttentionSetup {
  /// `params` are valid and resolved.
  explicit AttentionSetup(const AttentionParams& params);

  /// Returns G, the query heads that share one KV head.
  std::int64_t group() const noexcept { return params.num_heads / params.num_kv_heads; }

  AttentionParams params;
  const kernels::AttentionKernels* kernels;
  std::int64_t v_row;  ///< Dv rounded up to a K tile
  AttentionPartition partition;
};

/// Returns whether attention has the same kernels on both: what one adds may serve other products
/// only.
bool SameAttention(Isa a, Isa b) noexcept;

}  // namespace manyhead
