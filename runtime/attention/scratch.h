#pragma once

#include <cstdint>
#include <memory>

#include "kernels/attention_kernels.h"
#include "runtime/attention/partition.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// The memory of one thread.
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
  /// Allocates the memory; `setup` must outlive it.
  /// Errors   throws bad_alloc.
  explicit AttentionScratchMemory(const AttentionSetup& setup);

  /// Returns the bytes that a plan of `params`, which must be valid and resolved, allocates.
  static std::int64_t Bytes(const AttentionParams& params) noexcept;

  /// Returns the memory of thread `thread`.
  AttentionThreadScratch Of(int thread) const noexcept;
  /// Returns the memory for the partial state of a work item of a request that is split.
  kernels::AttentionState PartOf(const AttentionWork& work) const noexcept;
  /// Returns the floats available for all partial states of a step.
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
