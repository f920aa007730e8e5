#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/heads.h"

namespace manyhead {

/// Sums up the scores of every head from rows of attention weights, which it sees one by one.
///
/// Per head it keeps sums, and of a few rows copies: what is compared between heads and between
/// inputs is compared at every kSampled-th position.
class HeadScorer {
 public:
  static constexpr std::int64_t kOffsets = 17;      ///< distances 0..16
  static constexpr std::int64_t kSinkTokens = 4;    ///< first tokens of the text
  static constexpr std::int64_t kLocalTokens = 16;  ///< last tokens, the present one included
  /// Rows of a text before this one see so little that first and last tokens are all there is.
  static constexpr std::int64_t kFirstTextRow = 64;
  static constexpr std::int64_t kFirstSample = 16;
  static constexpr std::int64_t kSampled = 8;
  static constexpr std::int64_t kNeedleCue = 4;  ///< tokens of a needle that are given

  /// `heads[layer]` query heads.
  explicit HeadScorer(const std::vector<std::int64_t>& heads);

  /// The rows that follow are those of `probe`, which is no sentence; each once, in the order of
  /// CaptureOptions::on_row. Repeats are all of one length.
  void Begin(const Probe& probe);
  void Add(const CapturedRow& row) noexcept;
  /// The rows of the probe have been seen. For a needle: whether the model copied its i-th token,
  /// i in [kNeedleCue, count).
  void End(const std::vector<bool>& copied = {});

  /// [layer * heads + head] in the order of `heads`.
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
    std::size_t first = 0;         // of sums_
    std::vector<double> likeness;  // [heads][heads] sum of 1 - total variation, by (later, earlier)
    std::vector<std::vector<float>> rows;      // [heads] of the sampled position that is under way
    std::vector<std::vector<float>> previous;  // [heads] of the last repeat, all sampled positions
    std::int64_t sampled = 0;                  // positions compared between heads
    std::int64_t compared = 0;                 // positions compared between repeats
  };

  void AddText(const CapturedRow& row, Sums& sums) noexcept;
  void AddRepeat(const CapturedRow& row, Sums& sums) noexcept;
  void AddNeedle(const CapturedRow& row, Sums& sums) noexcept;
  void CompareHeads(const CapturedRow& row, Layer& layer) noexcept;
  void CompareRepeats(const CapturedRow& row, Layer& layer, Sums& sums) noexcept;
  void FinishTwins(const Layer& layer, std::vector<HeadScores>& scores) const;

  std::vector<Layer> layers_;
  std::vector<Sums> sums_;
  Probe probe_;  // without its ids
  std::int64_t tokens_ = 0;
  std::int64_t text_rows_ = 0, repeat_rows_ = 0, needle_tokens_ = 0, repeats_ = 0;
};

/// Half the sum of |a[i] - b[i]| over `count` weights.
double TotalVariation(const float* a, const float* b, std::size_t count) noexcept;

}  // namespace manyhead
