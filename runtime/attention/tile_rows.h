#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "runtime/attention/setup.h"

namespace manyhead {

/// The rows of one tile: which query each is, what it sees, and where it comes from and goes to.
class AttentionTileRows {
 public:
  /// Tile `index` of `head`, a KV head, which lets queries see of `keys` what its `sink` and
  /// `recent` say.
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

  /// The first keys at or after position `from` that any row sees and that lie in one block; empty
  /// at end() when there are none.
  KeySpan BlockFrom(std::int64_t from) const noexcept;

  /// Brings the queries into the kernels' order.
  void PackQueries(const TensorView<const float>& q, float* packed) const noexcept;
  /// What to fetch during `block`, one of the last: a share of the rows of `out`, and of the
  /// queries of the tile that this thread will probably take next. Both lie in other memory pages
  /// for each query, so that nothing else foresees them.
  void AskForEnds(const TensorView<const float>& q, const TensorView<float>& out, KeySpan block,
                  kernels::AttentionAhead& ahead) const noexcept;
  kernels::AttentionTile KernelTile(const float* packed, float* probs,
                                    const kernels::AttentionState& state) const noexcept;
  /// Writes out and, where it has data, lse; row_lse [rows] unless null.
  void Finish(const TensorView<float>& out, const TensorView<float>& lse,
              const kernels::AttentionState& state, float* row_lse) const noexcept;

 private:
  static constexpr std::int64_t kMax = kernels::kAttentionRows;

  /// Combines the plan's window and sinks with those of the head's cache.
  void Restrict(const kernels::KvHeadView& keys) noexcept;
  /// pointers[r] = where row r's numbers begin in `view`.
  template <class T>
  void Locate(const TensorView<T>& view, T** pointers) const noexcept;
  template <class T>
  void Locate(const LogitTensor<T>& tensor, const T** pointers) const noexcept;

  const AttentionSetup& setup_;
  const AttentionRequest& request_;
  std::int64_t rows_ = 0;
  std::int64_t sinks_ = 0;  ///< rows see keys in [0, sinks_) and in [begin_, end_) only
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  kernels::AttentionRules rules_;
  std::int64_t query_[kMax];  ///< counted from the request's first
  std::int64_t head_[kMax];
  std::int64_t position_[kMax];
  std::int64_t first_key_[kMax];
  std::int64_t end_key_[kMax];
  std::int64_t kept_first_[kMax];
  const float* bias_[kMax];
  const std::uint8_t* mask_[kMax];
  float slope_[kMax];
};

}  // namespace manyhead
