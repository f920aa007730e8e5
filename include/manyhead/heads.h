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
  HeadId head;                ///< head that the weights belong to
  std::int64_t position = 0;  ///< position of the query in the sequence
  /// [position + 1], indexed by the key's absolute position; 0 where the key is hidden, evicted or
  /// not stored. Empty without CaptureOptions::weights.
  std::span<const float> weights;
  float lse = 0;  ///< natural log of the softmax denominator; -inf where no key is seen
  /// Share of a sink logit: sum(weights) + sink_share = 1, or 0 where no key is seen.
  float sink_share = 0;
  /// [Dv]: the weighted sum of values as W_O reads it, with the session's edits and patches.
  std::span<const float> output{};
};

/// Selects the rows of attention weights and head outputs that a session captures; see
/// Session::SetCapture.
struct CaptureOptions {
  std::vector<HeadId> heads{};  ///< empty: all; each once, in any order
  std::int64_t first = 0;       ///< first query position
  std::int64_t last = -1;       ///< last query position, inclusive; -1 = to the end
  std::int64_t every = 1;       ///< step between query positions: first, first + every, ...
  bool weights = true;          ///< false: rows without weights, which need not be recomputed
  /// Called by the thread that evaluates the tokens, in the middle of a step: layer by layer, and
  /// within a layer by (position, head). The row is valid during the call. The function must
  /// neither throw nor call the session.
  std::function<void(const CapturedRow&)> on_row{};
};

/// The bounds of a CaptureRing.
struct CaptureRingOptions {
  std::int64_t max_rows = 4096;  ///< largest number of rows, at least 1
  /// Largest number of weights in all rows together, at least 1.
  std::int64_t max_weights = std::int64_t{16} << 20;
  /// Keeps the largest weights only, the earlier key first among equal ones; 0 = all.
  std::int64_t top_k = 0;
};

/// Keeps the newest captured rows within bounds; all memory is allocated at once:
///
///   CaptureRing ring({.max_rows = 1000});
///   options.on_row = [&](const CapturedRow& row) { ring.Add(row); };
class CaptureRing {
 public:
  /// The part of a CapturedRow that is kept.
  struct Row {
    HeadId head;                ///< head that the weights belong to
    std::int64_t position = 0;  ///< position of the query
    float lse = 0;              ///< lse over all keys
    float sink_share = 0;       ///< share of a sink logit
    /// Weights of `keys`; without top_k of all keys, [position + 1].
    std::span<const float> weights;
    std::span<const std::int64_t> keys;  ///< positions, by descending weight; empty without top_k
  };

  /// Sizes below 1 count as 1. Throws bad_alloc.
  explicit CaptureRing(const CaptureRingOptions& options);

  /// Drops the oldest rows until `row` fits; a row longer than max_weights is itself dropped.
  /// Allocates nothing.
  void Add(const CapturedRow& row) noexcept;
  /// Drops all rows and resets the count of dropped rows.
  void Clear() noexcept;

  /// Number of rows kept.
  std::int64_t size() const noexcept { return count_; }
  /// Returns row `index`, counted from the oldest; valid until the next Add.
  Row operator[](std::int64_t index) const noexcept;
  /// Number of rows that were dropped for newer ones, or because they were too long.
  std::int64_t dropped() const noexcept { return dropped_; }

 private:
  struct Place {
    HeadId head;
    std::int64_t position = 0, begin = 0, length = 0;
    float lse = 0, sink_share = 0;
  };
  const Place& Oldest() const noexcept { return places_[static_cast<std::size_t>(first_)]; }
  void DropOldest() noexcept;
  /// Drops old rows until `length` weights fit, and returns where they go.
  std::int64_t MakeRoom(std::int64_t length) noexcept;
  void SelectTop(std::span<const float> weights, std::int64_t begin, std::int64_t count) noexcept;

  CaptureRingOptions options_;
  std::vector<Place> places_;  // [max_rows], a ring
  std::vector<float> weights_;
  std::vector<std::int64_t> keys_;  // used with top_k
  std::int64_t first_ = 0, count_ = 0;
  std::int64_t end_ = 0;  // end of the newest row's weights
  std::int64_t dropped_ = 0;
};

/// The settings of a HeadProfile.
struct HeadProfileOptions {
  /// The rows at the positions every - 1, 2 every - 1, ... are measured; time and bytes are those
  /// of every step. At least 1.
  std::int64_t every = 8;
  std::int64_t sink_tokens = 4;  ///< n of HeadStats::sink_mass, at least 0
  std::int64_t recent = 64;      ///< w of HeadStats::recent_mass, at least 1
};

/// Measurements of one query head. Query heads that share a KV head are computed together: its time
/// and bytes are divided evenly among them.
struct HeadStats {
  double seconds = 0;   ///< time in attention, summed over steps and over the threads that worked
  double kv_bytes = 0;  ///< least bytes of keys and values that the steps had to read, summed
  /// Measured rows that saw a key; the following members are means over them.
  std::int64_t rows = 0;

  double entropy = 0;          ///< -sum_s w_s ln w_s, nats
  double sink_mass = 0;        ///< weight of the sequence's first n tokens
  double recent_mass = 0;      ///< weight of the last w tokens, the query's own included
  double mean_distance = 0;    ///< sum_s w_s (i - s), in tokens; 0 is the query itself
  double median_distance = 0;  ///< the least distance within which half of the weight lies
  double max_weight = 0;       ///< the row's largest weight
  /// Norm |W_h a_h| of what the head adds to the residual stream, W_h being its columns of W_O and
  /// a_h its weighted sum of values. Where the model normalises the sum over heads before it is
  /// added, that norm's weights and its factor at this row are part of W_h. A bias of the
  /// projection belongs to no head.
  double output_norm = 0;

  /// e^entropy: the number of tokens that, sharing the weight evenly, would give this entropy.
  double effective_tokens() const noexcept { return rows == 0 ? 0 : std::exp(entropy); }
};

/// Measurements of every head since Session::SetHeadProfile.
///
/// The weights are recomputed from queries, keys and lse with attention's own kernels, so they are
/// the weights that were used, whatever the types, windows and policies of the cache.
struct HeadProfile {
  HeadProfileOptions options{};                 ///< settings that it was made with
  std::int64_t steps = 0;                       ///< number of steps, of any number of tokens
  std::int64_t tokens = 0;                      ///< tokens of all steps
  std::vector<std::vector<HeadStats>> heads{};  ///< [layer][query head]
};

}  // namespace manyhead
