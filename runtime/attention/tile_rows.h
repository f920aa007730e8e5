#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// The rows of one tile: their queries, the keys that they see, and the addresses of inputs and
/// outputs.
class AttentionTileRows {
 public:
  /// Describes tile `index` of `head`, a KV head. Of `keys`, its `sink` and `recent` limit which
  /// ones queries see.
  AttentionTileRows(const AttentionSetup& setup, const AttentionBias& bias,
                    const AttentionRequest& request, std::int64_t head, std::int64_t index,
                    const kernels::KvHeadView& keys) noexcept;
  AttentionTileRows(const AttentionTileRows&) = delete;
  AttentionTileRows& operator=(const AttentionTileRows&) = delete;

  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t end() const noexcept { return end_; }
  SeenKeys seen() const noexcept { return {sinks_, begin_, end_}; }
  std::int64_t query(std::int64_t row) const noexcept { return query_[row]; }
  std::int64_t head(std::int64_t row) const noexcept { return head_[row]; }

  /// Returns the first keys at or after position `from` that any row sees and that lie in one
  /// block; empty at end() when there are none.
  KeySpan BlockFrom(std::int64_t from) const noexcept;

  /// Copies the queries in the kernels' order.
  void PackQueries(const TensorView<const float>& q, float* packed) const noexcept;
  /// Adds to `prefetch` the memory that is used next during `block`, one of the last: a share of
  /// the rows of `out`, and of the queries of the tile that this thread will probably handle next.
  /// Both lie in other memory pages for each query, which hardware does not prefetch.
  void PrefetchEnds(const TensorView<const float>& q, const TensorView<float>& out, KeySpan block,
                    kernels::AttentionPrefetch& prefetch) const noexcept;
  kernels::AttentionTile KernelTile(const float* packed, float* probs,
                                    const kernels::AttentionState& state) const noexcept;
  /// Writes out and, where it has data, lse; row_lse [rows] unless null.
  void Finish(const TensorView<float>& out, const TensorView<float>& lse,
              const kernels::AttentionState& state, float* row_lse) const noexcept;

 private:
  static constexpr std::int64_t kMax = kernels::kAttentionRows;

  /// Combines the plan's window and sinks with those of the head's cache.
  void ApplyPolicy(const kernels::KvHeadView& keys) noexcept;
  /// Sets pointers[r] to the start of row r's numbers in `view`.
  template <class T>
  void Locate(const TensorView<T>& view, T** pointers) const noexcept;
  template <class T>
  void Locate(const LogitTensor<T>& tensor, const T** pointers) const noexcept;

  const AttentionSetup& setup_;
  const AttentionRequest& request_;
  std::int64_t rows_ = 0;
  std::int64_t sinks_ = 0;  ///< rows see only keys in [0, sinks_) and in [begin_, end_)
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  kernels::AttentionRules rules_;
  std::int64_t query_[kMax];  ///< index counted from the request's first query
  std::int64_t head_[kMax];
  std::int64_t position_[kMax];
  std::int64_t first_key_[kMax];
  std::int64_t end_key_[kMax];
  std::int64_t policy_first_key_[kMax];
  const float* bias_[kMax];
  const std::uint8_t* mask_[kMax];
  float slope_[kMax];
};

}  // namespace manyhead
