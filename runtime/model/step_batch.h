#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "manyhead/kinds.h"
#include "manyhead/kv_cache.h"
#include "manyhead/types.h"
#include "runtime/model/attention_tap.h"
#include "runtime/model/head_edits.h"

namespace manyhead {

/// Called with each layer's queries [rows, H, D] of a sequence, as attention gets them: rotated,
/// the first at `position`. One thread of the region calls it, while the others continue.
using QueryTap = std::function<void(std::size_t layer, std::int64_t position, std::int64_t rows,
                                    const float* query)>;

/// One sequence of a step.
struct StepSequence {
  SequenceId id{};            ///< sequence of the cache, in which its rows are reserved
  std::int64_t position = 0;  ///< position of its first row: the cache's length minus its rows
  RowRole role = RowRole::kPrefill;
  const std::vector<HeadEdits>* edits = nullptr;  ///< [layer] changes to its heads; null: none
  AttentionTap* attention_tap = nullptr;          ///< observes its attention; null: none
  const QueryTap* query_tap = nullptr;            ///< receives its queries; null: none
};

/// The input of the layer loop for one step: the next tokens of some sequences, in any order and in
/// either role. Rows are numbered in the order of `ids`. A row's results do not depend on other
/// rows.
struct StepBatch {
  std::span<const TokenId> ids{};             ///< [M] sequence by sequence
  std::span<const std::int64_t> qo_indptr{};  ///< [B + 1]: start of each sequence's ids, and M
  std::span<const StepSequence> sequences{};  ///< [B], all different
  /// Rows whose logits are computed, at most M, in any order.
  std::span<const std::int64_t> logit_rows{};
  float* logits = nullptr;                      ///< [logit_rows, vocab]
  std::span<const std::int64_t> hidden_rows{};  ///< rows whose hidden states are written
  float* hidden = nullptr;  ///< [hidden_rows, d]: what the output matrix reads, after the last norm
};

/// A step of one sequence: its last ids, for which the cache has reserved room.
class SequenceStep {
 public:
  SequenceStep(const KvCache& cache, SequenceId id, std::span<const TokenId> ids, RowRole role)
      : ids_(ids), indptr_{0, std::ssize(ids)} {
    sequence.id = id;
    sequence.position = cache.length(id) - std::ssize(ids);
    sequence.role = role;
  }
  SequenceStep(const SequenceStep&) = delete;
  SequenceStep& operator=(const SequenceStep&) = delete;

  StepSequence sequence;

  /// Returns the batch without logits, or with those [vocab] after the last id. It is valid as long
  /// as the step.
  StepBatch Batch(float* logits = nullptr) {
    StepBatch batch;
    batch.ids = ids_;
    batch.qo_indptr = indptr_;
    batch.sequences = {&sequence, 1};
    last_ = std::ssize(ids_) - 1;
    if (logits != nullptr) batch.logit_rows = {&last_, 1};
    batch.logits = logits;
    return batch;
  }

 private:
  std::span<const TokenId> ids_;
  std::int64_t indptr_[2];
  std::int64_t last_ = 0;
};

}  // namespace manyhead
