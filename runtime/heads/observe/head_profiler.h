#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "runtime/heads/observe/output_gram.h"
#include "runtime/heads/observe/row_stats.h"
#include "runtime/model/attention_tap.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Fills a HeadProfile. Sums have a fixed order, so all but the times are independent of the number
/// of threads.
class HeadProfiler {
 public:
  struct Limits {
    std::int64_t context = 0;
    std::int64_t max_rows = 0;  ///< largest number of rows of a step
    int threads = 1;
    Isa isa = Isa::kScalar;
  };

  static Status Check(const HeadProfileOptions& options, const char* function);

  /// Empties `*profile`, which must outlive the profiler. `options` must have passed Check.
  /// Errors   as OutputGrams; `*profile` is then unchanged. Throws bad_alloc.
  static Result<HeadProfiler> Create(const Model::Impl& model, const Limits& limits,
                                     const HeadProfileOptions& options, HeadProfile* profile);

  /// Observes one layer; see AttentionTap.
  void Observe(Worker& worker, const AttentionStep& step) noexcept;
  std::int64_t* head_times() noexcept { return times_.data(); }
  std::int64_t head_times_stride() const noexcept { return times_stride_; }

 private:
  HeadProfiler(const Model::Impl& model, const Limits& limits, OutputGrams grams,
               const HeadProfileOptions& options, HeadProfile* profile);
  void AddCosts(const AttentionStep& step, std::vector<HeadStats>& heads) noexcept;
  void LookAt(int thread, const AttentionStep& step, std::int64_t position, std::int64_t kv_head,
              RowStats* stats) noexcept;
  double NormFactor(const AttentionStep& step, std::int64_t row) const noexcept;

  const Model::Impl* model_;
  HeadProfile* profile_;
  int threads_;
  OutputGrams grams_;
  std::int64_t times_stride_;
  std::vector<std::int64_t> times_;  ///< [threads][times_stride_] nanoseconds of the current layer
  std::int64_t row_stride_;          ///< size of one head's row of weights
  std::int64_t thread_stride_;
  AlignedBuffer<float> rows_;  ///< [threads][G][row_stride_]
  std::int64_t entropy_stride_;
  std::vector<float> entropies_;   ///< [threads][entropy_stride_]
  std::vector<RowStats> sampled_;  ///< [position][H] of the current layer
};

}  // namespace manyhead
