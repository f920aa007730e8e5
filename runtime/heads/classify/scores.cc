#include "runtime/heads/classify/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

/// Returns the entropy of the weights divided by that of equal weights on as many keys.
double Uniformity(std::span<const float> weights) noexcept {
  double entropy = 0;
  for (const float w : weights)
    if (w > 0) entropy -= static_cast<double>(w) * std::log(static_cast<double>(w));
  return entropy / std::log(static_cast<double>(weights.size()));
}

double Sum(std::span<const float> weights) noexcept {
  double sum = 0;
  for (const float w : weights) sum += static_cast<double>(w);
  return sum;
}

}  // namespace

double TotalVariation(const float* a, const float* b, std::size_t count) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum / 2;
}

HeadScorer::HeadScorer(const std::vector<std::int64_t>& heads) {
  std::size_t first = 0;
  for (const std::int64_t count : heads) {
    const auto size = static_cast<std::size_t>(count);
    Layer layer;
    layer.heads = count;
    layer.first = first;
    layer.likeness.assign(size * size, 0);
    layer.rows.resize(size);
    layer.previous.resize(size);
    layers_.push_back(std::move(layer));
    first += size;
  }
  sums_.resize(first);
}

void HeadScorer::Begin(const Probe& probe) {
  tokens_ = static_cast<std::int64_t>(probe.ids.size());
  probe_ = {probe.kind, {}, probe.begin, probe.count, probe.again};
  const auto length = static_cast<std::size_t>(tokens_);
  for (Layer& layer : layers_)
    for (std::size_t h = 0; h < layer.rows.size(); ++h) {
      layer.rows[h].resize(length);
      // The rows of sampled positions lie side by side, each as long as the longest.
      if (probe.kind == ProbeKind::kRepeat)
        layer.previous[h].resize(length * (length / kSampled + 1));
    }
}

void HeadScorer::Add(const CapturedRow& row) noexcept {
  Layer& layer = layers_[static_cast<std::size_t>(row.head.layer)];
  Sums& sums = sums_[layer.first + static_cast<std::size_t>(row.head.head)];
  switch (probe_.kind) {
    case ProbeKind::kText:
      AddText(row, sums);
      break;
    case ProbeKind::kRepeat:
      AddRepeat(row, sums);
      break;
    case ProbeKind::kNeedle:
      AddNeedle(row, sums);
      return;
    case ProbeKind::kSentence:
      return;
  }
  if (row.position % kSampled != 0 || row.position < kFirstSample) return;
  CompareHeads(row, layer);
  if (probe_.kind == ProbeKind::kRepeat) CompareRepeats(row, layer, sums);
}

void HeadScorer::AddText(const CapturedRow& row, Sums& sums) noexcept {
  if (row.position < kFirstTextRow) return;
  const std::span<const float> weights = row.weights;
  for (std::size_t k = 0; k < kOffsets; ++k)
    sums.offsets[k] += static_cast<double>(weights[weights.size() - 1 - k]);
  sums.sink += Sum(weights.first(kSinkTokens));
  sums.local += Sum(weights.last(kLocalTokens));
  sums.uniformity += Uniformity(weights);
}

void HeadScorer::AddRepeat(const CapturedRow& row, Sums& sums) noexcept {
  if (row.position < probe_.again) return;
  const auto before = static_cast<std::size_t>(row.position - (probe_.again - probe_.begin));
  sums.duplicate += static_cast<double>(row.weights[before]);
  sums.induction += static_cast<double>(row.weights[before + 1]);
}

/// Adds a row of the needle's second occurrence: each of its tokens but the last should attend to
/// its successor.
void HeadScorer::AddNeedle(const CapturedRow& row, Sums& sums) noexcept {
  const std::int64_t next = row.position - probe_.again + 1;
  if (next < kNeedleCue || next >= probe_.count) return;
  const auto strongest = std::max_element(row.weights.begin(), row.weights.end());
  if (strongest - row.weights.begin() == probe_.begin + next)
    sums.needle_seen |= std::uint64_t{1} << next;
}

void HeadScorer::CompareHeads(const CapturedRow& row, Layer& layer) noexcept {
  const auto head = static_cast<std::size_t>(row.head.head);
  const std::size_t length = row.weights.size();
  std::copy(row.weights.begin(), row.weights.end(), layer.rows[head].begin());
  for (std::size_t other = 0; other < head; ++other)
    layer.likeness[head * layer.rows.size() + other] +=
        1 - TotalVariation(layer.rows[head].data(), layer.rows[other].data(), length);
  if (head == 0) ++layer.sampled;
}

void HeadScorer::CompareRepeats(const CapturedRow& row, Layer& layer, Sums& sums) noexcept {
  std::vector<float>& rows = layer.previous[static_cast<std::size_t>(row.head.head)];
  float* stored = rows.data() + (row.position - kFirstSample) / kSampled * tokens_;
  if (repeats_ > 0) {
    sums.constancy += 1 - TotalVariation(row.weights.data(), stored, row.weights.size());
    if (row.head.head == 0) ++layer.compared;
  }
  std::copy(row.weights.begin(), row.weights.end(), stored);
}

void HeadScorer::End(const std::vector<bool>& copied) {
  switch (probe_.kind) {
    case ProbeKind::kText:
      text_rows_ += std::max(std::int64_t{0}, tokens_ - kFirstTextRow);
      break;
    case ProbeKind::kRepeat:
      repeat_rows_ += tokens_ - probe_.again;
      ++repeats_;
      break;
    case ProbeKind::kNeedle:
      MANYHEAD_DCHECK(static_cast<std::int64_t>(copied.size()) == probe_.count);
      needle_tokens_ += probe_.count - kNeedleCue;
      for (Sums& sums : sums_) {
        for (std::size_t i = kNeedleCue; i < copied.size(); ++i)
          sums.retrieved += copied[i] && (sums.needle_seen >> i & 1) != 0;
        sums.needle_seen = 0;
      }
      break;
    case ProbeKind::kSentence:
      break;
  }
}

void HeadScorer::FinishTwins(const Layer& layer, std::vector<HeadScores>& scores) const {
  const auto heads = static_cast<std::size_t>(layer.heads);
  for (std::size_t head = 0; head < heads; ++head) {
    HeadScores& own = scores[layer.first + head];
    own.twin = layer.sampled > 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
    for (std::size_t other = 0; layer.sampled > 0 && other < head; ++other) {
      const double likeness =
          layer.likeness[head * heads + other] / static_cast<double>(layer.sampled);
      if (own.twin_head >= 0 && likeness <= own.twin) continue;
      own.twin = likeness;
      own.twin_head = static_cast<std::int64_t>(other);
    }
  }
}

std::vector<HeadScores> HeadScorer::Scores() const {
  const auto mean = [](double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
  };
  std::vector<HeadScores> scores(sums_.size());
  for (const Layer& layer : layers_) {
    for (std::size_t i = layer.first; i < layer.first + static_cast<std::size_t>(layer.heads);
         ++i) {
      const Sums& sums = sums_[i];
      const auto best = std::max_element(sums.offsets.begin(), sums.offsets.end());
      scores[i].previous_token = mean(sums.offsets[1], text_rows_);
      scores[i].fixed_offset = mean(*best, text_rows_);
      scores[i].offset = best - sums.offsets.begin();
      scores[i].sink = mean(sums.sink, text_rows_);
      scores[i].local = mean(sums.local, text_rows_);
      scores[i].uniformity = mean(sums.uniformity, text_rows_);
      scores[i].duplicate_token = mean(sums.duplicate, repeat_rows_);
      scores[i].induction = mean(sums.induction, repeat_rows_);
      scores[i].constancy = mean(sums.constancy, layer.compared);
      scores[i].retrieval = mean(static_cast<double>(sums.retrieved), needle_tokens_);
    }
    FinishTwins(layer, scores);
  }
  return scores;
}

}  // namespace manyhead
