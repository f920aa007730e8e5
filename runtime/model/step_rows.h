#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "manyhead/status.h"
#include "runtime/cache/token_rows.h"
#include "runtime/linear/linear.h"
#include "runtime/model/step_batch.h"

namespace manyhead {

/// The rows of one sequence of a step.
struct StepRequest {
  const StepSequence* sequence = nullptr;
  std::int64_t first = 0;  ///< first row in the decoder's order
  std::int64_t rows = 0;
  std::int64_t caller_first = 0;  ///< first row in the caller's order
};

/// The rows of a step in the decoder's order: decode rows precede prompts, so that rows which use
/// the same product are neighbours and share one pass over the weights.
class StepRows {
 public:
  StepRows(std::int64_t max_rows, std::int64_t max_sequences);
  static std::int64_t SizeBytes(std::int64_t max_rows, std::int64_t max_sequences) noexcept;

  /// Sets the rows of `batch`, which Check has accepted. Allocates nothing.
  void Set(const StepBatch& batch) noexcept;

  std::int64_t count() const noexcept { return linear_.count(); }
  const LinearRows& linear() const noexcept { return linear_; }
  /// The rows of a product with the output matrix, which all take the product of rows that decode:
  /// row i is the caller's row row_at(i), i in [0, count). Valid until the next call.
  template <class RowAt>
  LinearRows HeadRows(std::int64_t count, RowAt row_at) noexcept {
    std::size_t accurate = 0;
    for (std::int64_t i = 0; i < count; ++i)
      if (row(PlaceOf(row_at(i))).accurate) accurate_head_[accurate++] = i;
    return {.decode = count, .accurate = {accurate_head_.data(), accurate}};
  }
  std::span<const StepRequest> requests() const noexcept { return {requests_.data(), size_}; }
  /// The arguments for attention and the cache.
  std::span<const SequenceId> sequences() const noexcept { return {sequences_.data(), size_}; }
  const std::int64_t* indptr() const noexcept { return indptr_.data(); }
  std::span<const KvRows> kv_rows() const noexcept { return {kv_rows_.data(), size_}; }

  struct Row {
    std::int64_t caller = 0;   ///< index of the row in the caller's order
    std::int64_t request = 0;  ///< index into requests()
    std::int64_t place = 0;
    bool accurate = false;  ///< see LinearRows
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

  std::size_t size_ = 0;  ///< number of sequences
  LinearRows linear_;
  std::vector<StepRequest> requests_;  ///< [max_sequences], as are the next two
  std::vector<SequenceId> sequences_;
  std::vector<KvRows> kv_rows_;
  std::vector<std::int64_t> indptr_;  ///< [max_sequences + 1]
  std::vector<Row> rows_;             ///< [max_rows], as are the next
  std::vector<std::int64_t> accurate_, accurate_head_;
};

/// The limits of a step.
struct StepBounds {
  std::int64_t max_rows = 0;
  std::int64_t max_sequences = 0;
  std::int64_t vocab_size = 0;
  std::int64_t layers = 0;
  std::int64_t num_positions = 0;  ///< positions that the model has learned; 0: any
  bool tapped = false;             ///< the buffers that attention taps read exist
};

/// Checks that a batch is valid and fits the cache.
/// Errors   kInvalidArgument naming the error in `batch`, or in how it fits `cache`.
Status CheckBatch(const StepBatch& batch, const KvCache& cache, const StepBounds& bounds) noexcept;

}  // namespace manyhead
