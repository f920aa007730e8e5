#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/heads.h"

namespace manyhead {

/// Sums up the scores of every head from rows of attention weights, which arrive one by one.
///
/// It keeps sums for each head, and copies of a few rows: comparisons between heads and between
/// inputs use every kSampled-th position.
class HeadScorer {
 public:
  static constexpr std::int64_t kOffsets = 17;      ///< distances 0..16
  static constexpr std::int64_t kSinkTokens = 4;    ///< first tokens of the text
  static constexpr std::int64_t kLocalTokens = 16;  ///< last tokens, the current one included
  /// Earlier rows of a text see so few tokens that nearly all are first or last tokens.
  static constexpr std::int64_t kFirstTextRow = 64;
  static constexpr std::int64_t kFirstSample = 16;
  static constexpr std::int64_t kSampled = 8;
  /// Number of needle tokens that are given as a cue.
  static constexpr std::int64_t kNeedleCue = 4;

  /// Creates a scorer; `heads[layer]` is the number of query heads.
  explicit HeadScorer(const std::vector<std::int64_t>& heads);

  /// Starts a probe, which must not be a sentence: the following rows belong to it, each once, in
  /// the order of CaptureOptions::on_row. All repeats must have one length.
  void Begin(const Probe& probe);
  void Add(const CapturedRow& row) noexcept;
  /// Ends the probe after its last row. `copied` says, for a needle, whether the model copied its
  /// i-th token, i in [kNeedleCue, count).
  void End(const std::vector<bool>& copied = {});

  /// Returns the scores [layer * heads + head], in the order of `heads`.
  std::vector<HeadScores> Scores() const;

 private:
  struct Sums {
    std::array<double, kOffsets> offsets{};
    double sink = 0, local = 0, uniformity = 0, induction = 0, duplicate = 0, constancy = 0;
    std::uint64_t needle_seen = 0;  // bit i: the strongest arc went to the i-th token of the needle
    std::int64_t retrieved = 0;
  };
  struct Layer {
    std::int64_t heads = 0;
    std::size_t first = 0;         // index of the layer's first head in sums_
    std::vector<double> likeness;  // [heads][heads] sum of 1 - total variation, by (later, earlier)
    std::vector<std::vector<float>> rows;  // [heads] rows of the current sampled position
    // [heads] rows of the last repeat, all sampled positions.
    std::vector<std::vector<float>> previous;
    std::int64_t sampled = 0;   // number of positions compared between heads
    std::int64_t compared = 0;  // number of positions compared between repeats
  };

  void AddText(const CapturedRow& row, Sums& sums) noexcept;
  void AddRepeat(const CapturedRow& row, Sums& sums) noexcept;
  void AddNeedle(const CapturedRow& row, Sums& sums) noexcept;
  void CompareHeads(const CapturedRow& row, Layer& layer) noexcept;
  void CompareRepeats(const CapturedRow& row, Layer& layer, Sums& sums) noexcept;
  void FinishTwins(const Layer& layer, std::vector<HeadScores>& scores) const;

  std::vector<Layer> layers_;
  std::vector<Sums> sums_;
  Probe probe_;  // the probe without its ids
  std::int64_t tokens_ = 0;
  std::int64_t text_rows_ = 0, repeat_rows_ = 0, needle_tokens_ = 0, repeats_ = 0;
};

/// Returns half the sum of |a[i] - b[i]| over `count` weights.
double TotalVariation(const float* a, const float* b, std::size_t count) noexcept;

}  // namespace manyhead
