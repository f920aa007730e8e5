#pragma once

#include <cstdint>

#include "manyhead/attention.h"
#include "runtime/attention/head_times.h"
#include "runtime/attention/key_source.h"
#include "runtime/attention/scratch.h"
#include "runtime/attention/setup.h"
#include "runtime/attention/step_requests.h"
#include "runtime/attention/tile_rows.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Runs attention over the requests of a step, as one thread of a team: first all items, then the
/// merges of items that are one split of a tile's keys.
class AttentionRun {
 public:
  /// The sources of queries and the destinations of results.
  struct Tensors {
    std::int64_t layer;
    const TensorView<const float>& q;
    const TensorView<float>& out;
    const TensorView<float>& lse;  ///< data may be null
  };

  /// All arguments must outlive the calls of On.
  AttentionRun(const AttentionSetup& setup, const AttentionStepRequests& requests,
               const AttentionThreadScratch& scratch, const AttentionScratchMemory& parts,
               const Tensors& tensors) noexcept
      : setup_(setup), requests_(requests), scratch_(scratch), parts_(parts), tensors_(tensors) {}

  /// Executes this thread's share; ends with a barrier.
  void On(Worker& worker, const AttentionHeadTimes& times) const noexcept;

 private:
  /// Both return the work that they did.
  AttentionWork RunItem(std::int64_t item) const noexcept;
  AttentionWork MergeTile(std::int64_t item) const noexcept;
  /// Writes the rows' results, and adds the scores of keys that have them.
  void Finish(const AttentionTileRows& rows, const AttentionKeySource& source) const noexcept;

  const AttentionSetup& setup_;
  const AttentionStepRequests& requests_;
  const AttentionThreadScratch& scratch_;
  const AttentionScratchMemory& parts_;
  const Tensors& tensors_;
};

}  // namespace manyhead
