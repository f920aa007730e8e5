#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/head_id.h"

namespace MANYHEAD_API manyhead {

/// The attention weights of one query head at one query position.
struct CapturedRow {
  HeadId head;                ///< whose weights they are
  std::int64_t position = 0;  ///< of the query in the sequence
  /// [position + 1] by the key's absolute position; 0 where it is hidden, evicted or not stored.
  std::span<const float> weights;
  float lse = 0;         ///< natural log of the softmax denominator; -inf where no key is seen
  float sink_share = 0;  ///< of a sink logit: sum(weights) + sink_share = 1, 0 where no key is seen
};

/// Which rows of attention weights a session shows; see Session::SetCapture.
struct CaptureOptions {
  std::vector<HeadId> heads{};  ///< empty: all; each once, in any order
  std::int64_t first = 0;       ///< of the query positions
  std::int64_t last = -1;       ///< inclusive; -1 = to the end
  std::int64_t every = 1;       ///< first, first + every, ...
  /// Called by the thread that evaluates the tokens, in the middle of a step: layer by layer, and
  /// in a layer by (position, head). The row is valid during the call, which must neither throw nor
  /// call the session.
  std::function<void(const CapturedRow&)> on_row{};
};

/// How much a CaptureRing keeps.
struct CaptureRingOptions {
  std::int64_t max_rows = 4096;                       ///< at least 1
  std::int64_t max_weights = std::int64_t{16} << 20;  ///< of all rows together, at least 1
  std::int64_t top_k = 0;  ///< the largest weights only, of equals the earlier key's; 0 = all
};

/// Keeps the newest captured rows within bounds that are taken at once:
///
///   CaptureRing ring({.max_rows = 1000});
///   options.on_row = [&](const CapturedRow& row) { ring.Add(row); };
class CaptureRing {
 public:
  /// What is kept of a CapturedRow.
  struct Row {
    HeadId head;                         ///< whose weights they are
    std::int64_t position = 0;           ///< of the query
    float lse = 0;                       ///< of all keys
    float sink_share = 0;                ///< of a sink logit
    std::span<const float> weights;      ///< of `keys`; without top_k of all keys, [position + 1]
    std::span<const std::int64_t> keys;  ///< by falling weight; empty without top_k
  };

  /// Sizes below 1 count as 1. Throws bad_alloc.
  explicit CaptureRing(const CaptureRingOptions& options);

  /// Drops the oldest rows until `row` fits; one longer than max_weights is dropped itself.
  /// Allocates nothing.
  void Add(const CapturedRow& row) noexcept;
  /// Drops all rows, and counts anew.
  void Clear() noexcept;

  /// Rows kept.
  std::int64_t size() const noexcept { return count_; }
  /// Row `index`, the oldest first; valid until the next Add.
  Row operator[](std::int64_t index) const noexcept;
  /// Rows that went because newer ones came, or that were too long.
  std::int64_t dropped() const noexcept { return dropped_; }

 private:
  struct Place {
    HeadId head;
    std::int64_t position = 0, begin = 0, length = 0;
    float lse = 0, sink_share = 0;
  };
  const Place& Oldest() const noexcept { return places_[static_cast<std::size_t>(first_)]; }
  void DropOldest() noexcept;
  /// Where `length` weights fit, after old rows have gone.
  std::int64_t MakeRoom(std::int64_t length) noexcept;
  void SelectTop(std::span<const float> weights, std::int64_t begin, std::int64_t count) noexcept;

  CaptureRingOptions options_;
  std::vector<Place> places_;  // [max_rows], in turn
  std::vector<float> weights_;
  std::vector<std::int64_t> keys_;  // with top_k
  std::int64_t first_ = 0, count_ = 0;
  std::int64_t end_ = 0;  // of the newest row's weights
  std::int64_t dropped_ = 0;
};

/// What a HeadProfile looks at.
struct HeadProfileOptions {
  /// Rows of the positions every - 1, 2 every - 1, ... are looked at; time and bytes are those of
  /// every step. At least 1.
  std::int64_t every = 8;
  std::int64_t sink_tokens = 4;  ///< n of HeadStats::sink_mass, at least 0
  std::int64_t recent = 64;      ///< w of HeadStats::recent_mass, at least 1
};

/// What one query head did. Query heads that share a KV head are computed together: its time and
/// bytes are divided evenly among them.
struct HeadStats {
  double seconds = 0;     ///< of attention, summed over steps and over the threads that worked
  double kv_bytes = 0;    ///< of keys and values that the steps had to read at least, summed
  std::int64_t rows = 0;  ///< looked at, which saw a key; what follows are means over them

  double entropy = 0;          ///< -sum_s w_s ln w_s, nats
  double sink_mass = 0;        ///< weight of the sequence's first n tokens
  double recent_mass = 0;      ///< weight of the last w tokens, the query's own included
  double mean_distance = 0;    ///< sum_s w_s (i - s), tokens; 0 is the query itself
  double median_distance = 0;  ///< the least distance within which half of the weight lies
  double max_weight = 0;       ///< the row's largest weight
  /// |W_h a_h|: of what the head adds to the residual stream, W_h being its columns of W_O and a_h
  /// its weighted sum of values. Where the family norms the sum over heads before it is added, that
  /// norm's weights and its factor at this row are part of W_h. A bias of the projection belongs to
  /// no head.
  double output_norm = 0;

  /// Of how many tokens that share the weight evenly the entropy would be: e^entropy.
  double effective_tokens() const noexcept { return rows == 0 ? 0 : std::exp(entropy); }
};

/// What every head did since Session::SetHeadProfile.
///
/// The weights are recomputed from queries, keys and lse with attention's own kernels, so they are
/// those that were used, whatever the types, windows and policies of the cache.
struct HeadProfile {
  HeadProfileOptions options{};                 ///< that it was made with
  std::int64_t steps = 0;                       ///< of any number of tokens
  std::int64_t tokens = 0;                      ///< of all steps
  std::vector<std::vector<HeadStats>> heads{};  ///< [layer][query head]
};

}  // namespace manyhead
