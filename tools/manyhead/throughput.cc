#include "tools/manyhead/throughput.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace manyhead::cli {

std::int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Throughput ComputeThroughput(std::int64_t requests, std::int64_t tokens_each,
                             std::int64_t nanoseconds) {
  if (nanoseconds <= 0) return {};
  const double per_second = 1e9 / static_cast<double>(nanoseconds);
  return {static_cast<double>(requests * tokens_each) * per_second,
          static_cast<double>(requests) * per_second};
}

std::vector<std::int64_t> TimeRepetitions(std::int64_t repetitions, const NanosecondClock& clock,
                                          const std::function<bool()>& prepare,
                                          const std::function<bool()>& job) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < repetitions; ++i) {
    if (!prepare()) break;
    const std::int64_t start = clock();
    const bool done = job();
    const std::int64_t end = clock();
    if (!done) break;
    samples.push_back(end - start);
  }
  return samples;
}

MeanAndDeviation ComputeMeanAndDeviation(std::span<const double> samples) {
  if (samples.empty()) return {};
  const auto count = static_cast<double>(samples.size());
  double sum = 0, squares = 0;
  for (const double sample : samples) sum += sample;
  const double mean = sum / count;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  if (samples.size() < 2) return {mean, std::nullopt};
  return {mean, std::sqrt(squares / (count - 1))};
}

MedianInterval ComputeMedian(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  MedianInterval found;
  found.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  if (n == 1) return found;
  constexpr double kWanted = 0.95;
  // P(k - 1 of n samples or fewer are below the median), k = 1, 2, ...; in logarithms, because n
  // may be large.
  double tail = 0;
  for (std::size_t k = 1; 2 * k <= n; ++k) {
    const auto x = static_cast<double>(k - 1), all = static_cast<double>(n);
    tail += std::exp(std::lgamma(all + 1) - std::lgamma(x + 1) - std::lgamma(all - x + 1) -
                     all * std::log(2.0));
    if (k > 1 && 1 - 2 * tail < kWanted) break;
    found.low = sorted[k - 1];
    found.high = sorted[n - k];
    found.coverage = 1 - 2 * tail;
  }
  return found;
}

std::string ChecksumIds(std::span<const TokenId> ids) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= (static_cast<std::uint32_t>(id) >> shift) & 0xFFU;
      hash *= 0x100000001B3U;
    }
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

TokenId ArgMax(std::span<const float> logits) {
  // The row is searched in blocks: the maximum of a block is vectorised and seldom has to be
  // located.
  constexpr std::size_t kBlock = 1024;
  float best = -INFINITY;
  std::size_t best_block = 0;
  bool is_nan = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    float largest = -INFINITY;
    for (const float logit : block) {
      largest = logit > largest ? logit : largest;
      is_nan |= logit != logit;
    }
    if (largest > best) {
      best = largest;
      best_block = begin;
    }
  }
  if (is_nan || logits.empty()) return -1;
  const auto first = logits.begin() + static_cast<std::ptrdiff_t>(best_block);
  return static_cast<TokenId>(std::find(first, logits.end(), best) - logits.begin());
}

}  // namespace manyhead::cli
