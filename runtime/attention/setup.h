#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "manyhead/attention.h"
#include "runtime/attention/partition.h"

namespace manyhead {

/// The constant parts of a plan: its parameters, its kernels and its division of work.
struct AttentionSetup {
  /// Creates the setup; `params` must be valid and resolved.
  explicit AttentionSetup(const AttentionParams& params);

  /// Returns G, the query heads that share one KV head.
  std::int64_t group() const noexcept { return params.num_heads / params.num_kv_heads; }

  AttentionParams params;
  const kernels::AttentionKernels* kernels;
  std::int64_t v_row;  ///< Dv rounded up to a K tile
  AttentionPartition partition;
};

/// Returns true where attention has the same kernels on both instruction sets: one may add kernels
/// for other products only.
bool SameAttention(Isa a, Isa b) noexcept;

}  // namespace manyhead
