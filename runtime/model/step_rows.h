#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "manyhead/status.h"
#include "runtime/cache/token_rows.h"
#include "runtime/linear/linear.h"
#include "runtime/model/step_batch.h"

namespace manyhead {

/// One sequence's rows of a step, where the decoder has them.
struct StepRequest {
  const StepSequence* sequence = nullptr;
  std::int64_t first = 0;  ///< row, as the decoder orders them
  std::int64_t rows = 0;
  std::int64_t caller_first = 0;  ///< row, as the caller has them
};

/// The rows of a step in the decoder's order: sequences that decode stand before prompts, so that
/// rows which take the same product are neighbours, and pass over the weights together.
class StepRows {
 public:
  StepRows(std::int64_t max_rows, std::int64_t max_sequences);
  static std::int64_t SizeBytes(std::int64_t max_rows, std::int64_t max_sequences) noexcept;

  /// Takes the rows of `batch`, which Check has accepted. Allocates nothing.
  void Set(const StepBatch& batch) noexcept;

  std::int64_t count() const noexcept { return linear_.count(); }
  const LinearRows& linear() const noexcept { return linear_; }
  std::span<const StepRequest> requests() const noexcept { return {requests_.data(), size_}; }
  /// As attention and the cache take them.
  std::span<const SequenceId> sequences() const noexcept { return {sequences_.data(), size_}; }
  const std::int64_t* indptr() const noexcept { return indptr_.data(); }
  std::span<const KvRows> kv_rows() const noexcept { return {kv_rows_.data(), size_}; }

  struct Row {
    std::int64_t caller = 0;   ///< as the caller has it
    std::int64_t request = 0;  ///< index into requests()
    std::int64_t place = 0;    ///< of the caller's row of this number, in the decoder's order
  };
  const Row& row(std::int64_t index) const noexcept {
    return rows_[static_cast<std::size_t>(index)];
  }
  std::int64_t PlaceOf(std::int64_t caller_row) const noexcept { return row(caller_row).place; }
  std::int64_t PositionOf(std::int64_t index) const noexcept {
    const StepRequest& request = requests_[static_cast<std::size_t>(row(index).request)];
    return request.sequence->position + index - request.first;
  }

 private:
  void Add(const StepBatch& batch, std::size_t index) noexcept;

  std::size_t size_ = 0;  ///< sequences
  LinearRows linear_;
  std::vector<StepRequest> requests_;  ///< [max_sequences], as are the next
  std::vector<SequenceId> sequences_;
  std::vector<KvRows> kv_rows_;
  std::vector<std::int64_t> beginnings_;
  std::vector<std::int64_t> indptr_;  ///< [max_sequences + 1]
  std::vector<Row> rows_;             ///< [max_rows]
};

/// What a step has to stay within.
struct StepBounds {
  std::int64_t max_rows = 0;
  std::int64_t max_sequences = 0;
  std::int64_t vocab_size = 0;
  std::int64_t layers = 0;
  std::int64_t num_positions = 0;  ///< that the model has learned; 0: any
  bool tapped = false;             ///< there is room for what attention taps look at
};

/// Errors   kInvalidArgument naming what is wrong with `batch`, or with how it fits `cache`.
Status CheckBatch(const StepBatch& batch, const KvCache& cache, const StepBounds& bounds) noexcept;

}  // namespace manyhead
