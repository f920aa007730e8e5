#include "runtime/heads/observe/row_stats.h"

#include <algorithm>

namespace manyhead {
namespace {

constexpr std::int64_t kBlock = 64;  // number of keys that are summed in f32
constexpr std::int64_t kLanes = 16;  // number of sums that compilers can vectorise

/// Sums over the weights w of some neighbouring keys.
struct BlockSum {
  double weight = 0;  ///< sum w
  double moment = 0;  ///< sum w j, j counted from the first key
  float max = 0;
};

BlockSum SumOf(const float* weights, std::int64_t n) noexcept {
  float weight[kLanes] = {}, moment[kLanes] = {}, max[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      const float w = weights[i + j];
      weight[j] += w;
      moment[j] += w * static_cast<float>(i + j);
      max[j] = w > max[j] ? w : max[j];
    }
  }
  for (; i < n; ++i) {
    weight[0] += weights[i];
    moment[0] += weights[i] * static_cast<float>(i);
    max[0] = std::max(max[0], weights[i]);
  }
  BlockSum sum;
  for (std::int64_t j = 0; j < kLanes; ++j) {
    sum.weight += double{weight[j]};
    sum.moment += double{moment[j]};
    sum.max = std::max(sum.max, max[j]);
  }
  return sum;
}

/// Returns the weight of the keys of [begin, end) that lie in `span`.
double MassIn(const float* weights, KeySpan span, std::int64_t begin, std::int64_t end) noexcept {
  double mass = 0;
  const std::int64_t last = std::min(end, span.end);
  for (std::int64_t s = std::max(begin, span.begin); s < last; s += kBlock)
    mass += SumOf(weights + s, std::min(kBlock, last - s)).weight;
  return mass;
}

/// Returns the nearest key such that it and the keys after it have `half` of the weight.
std::int64_t MedianKey(const float* weights, const SeenKeys& seen, double half) noexcept {
  double mass = 0;
  std::int64_t nearest = 0;
  for (const KeySpan span : {KeySpan{seen.begin, seen.end}, KeySpan{0, seen.sinks}}) {
    for (std::int64_t end = span.end; end > span.begin;) {
      const std::int64_t begin = std::max(span.begin, end - kBlock);
      const double block = SumOf(weights + begin, end - begin).weight;
      if (mass + block < half) {
        mass += block;
        nearest = begin;
        end = begin;
        continue;
      }
      for (std::int64_t s = end - 1; s >= begin; --s) {
        mass += double{weights[s]};
        if (mass >= half) return s;
      }
      return begin;  // sums in f32 and in double differ in their last bits
    }
  }
  return nearest;
}

}  // namespace

RowStats StatsOfRow(const float* weights, const SeenKeys& seen, std::int64_t position,
                    const HeadProfileOptions& options) noexcept {
  RowStats stats;
  double total = 0, distances = 0;
  const KeySpan spans[] = {{0, seen.sinks}, {std::min(seen.begin, seen.end), seen.end}};
  for (const KeySpan span : spans) {
    for (std::int64_t s = span.begin; s < span.end; s += kBlock) {
      const BlockSum sum = SumOf(weights + s, std::min(kBlock, span.end - s));
      total += sum.weight;
      distances += static_cast<double>(position - s) * sum.weight - sum.moment;
      stats.max_weight = std::max(stats.max_weight, double{sum.max});
    }
    stats.sink_mass += MassIn(weights, span, 0, options.sink_tokens);
    stats.recent_mass += MassIn(weights, span, position - options.recent + 1, position + 1);
  }
  stats.sees_keys = total > 0;
  if (!stats.sees_keys) return stats;
  stats.mean_distance = distances / total;
  stats.median_distance = static_cast<double>(position - MedianKey(weights, seen, total / 2));
  return stats;
}

}  // namespace manyhead
