#pragma once

#include <cstdint>

#include "manyhead/attention.h"
#include "runtime/attention/key_source.h"
#include "runtime/attention/scratch.h"
#include "runtime/attention/setup.h"
#include "runtime/attention/step_requests.h"
#include "runtime/attention/tile_rows.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// The destinations of the attention weights of one KV head's query heads at one query.
struct AttentionRows {
  float* weights = nullptr;  ///< [G] rows, indexed by key position
  std::int64_t stride = 0;   ///< elements from row to row
  /// Number of keys to write, with zeros; 0: only those that SeenKeys names.
  std::int64_t length = 0;
  float* entropy = nullptr;  ///< [G] -sum w ln w, nats; or null
};

/// Computes attention weights after a run: the logits of a row again, by the kernels of that run,
/// and its lse as the divisor. No values are read.
class AttentionWeights {
 public:
  /// All arguments must outlive it.
  AttentionWeights(const AttentionSetup& setup, const AttentionStepRequests& requests,
                   const AttentionScratchMemory& scratch) noexcept
      : setup_(setup), requests_(requests), scratch_(scratch) {}

  /// Writes stage `stage` of the step's plain tensors; see AttentionPlan::Weights. Called by every
  /// thread of a team; ends with a barrier.
  void OfTensors(Worker& worker, LogitStage stage, float* weights) const noexcept;
  /// Writes stage kProbs of the step's one request over a cache: weights [H, q_len, kv_len]. Called
  /// by every thread of a team; ends with a barrier.
  void OfCache(Worker& worker, std::int64_t layer, const float* q, const float* lse,
               float* weights) const noexcept;
  /// Writes the weights of KV head `head` at query `query` of request `request`; see
  /// AttentionPlan::Impl::WeightsOf.
  SeenKeys OfQuery(int thread, std::int64_t layer, std::int64_t request, std::int64_t head,
                   std::int64_t query, const float* q, const float* lse,
                   const AttentionRows& to) const noexcept;
  /// Returns the share of head `head`'s sink logit in a row; 0 without one.
  float SinkShare(std::int64_t head, float lse) const noexcept;
  /// Returns the bytes of keys and values of KV head `head` in `layer` that the queries of
  /// `request` see.
  std::int64_t BytesSeen(std::int64_t layer, std::int64_t request,
                         std::int64_t head) const noexcept;

 private:
  /// Writes the stage of one tile of a KV head's rows.
  void OfTile(const AttentionRequest& request, std::int64_t head, std::int64_t tile,
              const AttentionThreadScratch& scratch, LogitStage stage,
              float* weights) const noexcept;
  SeenKeys OfRows(const AttentionTileRows& rows, const AttentionKeySource& source,
                  const AttentionThreadScratch& scratch, const float* lse,
                  const AttentionRows& to) const noexcept;
  /// Returns the rows of a tile, as many as divide a group.
  std::int64_t GroupTileRows() const noexcept;

  const AttentionSetup& setup_;
  const AttentionStepRequests& requests_;
  const AttentionScratchMemory& scratch_;
};

}  // namespace manyhead
