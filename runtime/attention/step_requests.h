#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_layout.h"
#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"
#include "runtime/attention/partition.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// The requests of one step: the data that attention reads for each, and their division into work.
class AttentionStepRequests {
 public:
  /// Creates the list; `setup` must outlive it.
  explicit AttentionStepRequests(const AttentionSetup& setup)
      : setup_(setup), requests_(static_cast<std::size_t>(setup.params.max_q_len)) {}

  /// Returns the bytes of a plan's requests, of which there are at most as many as queries.
  static std::int64_t Bytes(const AttentionParams& params) noexcept {
    return params.max_q_len * static_cast<std::int64_t>(sizeof(AttentionRequest));
  }

  /// Checks everything about a step but its layer's shape, and divides its work. The cache and the
  /// tensors must live until the last run of the step.
  ///
  /// Errors   those of AttentionPlan::Run; `function` begins the message. There is no work then.
  Status Prepare(const KvCache& cache, std::span<const SequenceId> sequences,
                 const std::int64_t* qo_indptr, const AttentionBias& bias,
                 const char* function) noexcept;
  Status Prepare(const AttentionTensors& tensors, const char* function) noexcept;

  std::span<const AttentionRequest> all() const noexcept {
    return std::span(requests_).first(static_cast<std::size_t>(count_));
  }
  const AttentionRequest& operator[](std::int64_t index) const noexcept {
    return requests_[static_cast<std::size_t>(index)];
  }
  std::int64_t count() const noexcept { return count_; }
  /// Returns the query tokens of all requests.
  std::int64_t q_len() const noexcept { return q_len_; }
  std::int64_t items() const noexcept { return items_; }
  std::int64_t merges() const noexcept { return merges_; }
  const AttentionBias& bias() const noexcept { return bias_; }
  /// Returns the plain tensors; null for a cache.
  const AttentionTensors* tensors() const noexcept { return tensors_; }

  /// Returns the keys of one head of the cache; none for plain tensors.
  kernels::KvHeadView KeysOf(const AttentionRequest& request, std::int64_t layer,
                             std::int64_t head) const noexcept;

 private:
  void Restart(const KvCache* cache, const AttentionTensors* tensors,
               const AttentionBias& bias) noexcept;
  Status Add(std::int64_t index, SequenceId sequence, std::int64_t q_len, std::int64_t kv_len,
             std::int64_t position, const char* function) noexcept;
  Status CutItems(const char* function) noexcept;

  const AttentionSetup& setup_;
  const KvCache* cache_ = nullptr;             ///< null: plain tensors
  const AttentionTensors* tensors_ = nullptr;  ///< null: a cache
  AttentionBias bias_;
  std::vector<AttentionRequest> requests_;  ///< [max_q_len]
  std::int64_t count_ = 0;
  std::int64_t q_len_ = 0;
  std::int64_t items_ = 0;
  std::int64_t merges_ = 0;
};

}  // namespace manyhead
