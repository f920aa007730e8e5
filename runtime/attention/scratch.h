#pragma once

#include <cstdint>
#include <memory>

#include "kernels/attention_kernels.h"
#include "runtime/attention/partition.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// One thread's memory.
struct AttentionThreadScratch {
  float* q;
  float* probs;
  float* k;  ///< a block of keys as f32 tiles
  float* v;  ///< a block of values as f32 rows
  kernels::AttentionState total;
  kernels::AttentionState part;
};

/// The memory of a plan's runs: a part for each thread, then partial states.
class AttentionScratchMemory {
 public:
  /// `setup` outlives it.
  /// Errors   throws bad_alloc.
  explicit AttentionScratchMemory(const AttentionSetup& setup);

  /// Returns what a plan of `params`, which are valid and resolved, is going to allocate.
  static std::int64_t Bytes(const AttentionParams& params) noexcept;

  /// Returns the memory of thread `thread`.
  AttentionThreadScratch Of(int thread) const noexcept;
  /// Returns the partial state that a work item of a request that is split leaves.
  kernels::AttentionState PartOf(const AttentionWork& work) const noexcept;
  /// Returns the floats that all partial states of a step may take.
  std::int64_t parts_floats() const noexcept { return sizes_.parts_floats; }

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };
  const AttentionSetup& setup_;
  AttentionScratch sizes_;
  std::unique_ptr<float, Free> memory_;
};

}  // namespace manyhead
