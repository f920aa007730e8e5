#include "runtime/calibrate/choose.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace manyhead {
namespace {

using Options = std::vector<PricedOption>;

/// The change of one head from an option to the next on its convex hull.
struct Step {
  std::size_t head = 0;
  std::size_t rank = 0;  ///< index of the step on its hull; steps are taken in order
  std::size_t option = 0;
  std::int64_t bytes = 0;  ///< additional bytes
  double gain_per_byte = 0;
};

/// Returns the options on the lower left hull of (bytes, loss): from the smallest on, each with
/// more bytes and less loss than the one before, at a decreasing gain per byte.
std::vector<std::size_t> Hull(const Options& options) {
  const bool any_finite = std::any_of(options.begin(), options.end(),
                                      [](const PricedOption& o) { return std::isfinite(o.loss); });
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < options.size(); ++i)
    if (!any_finite || std::isfinite(options[i].loss)) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (options[a].bytes != options[b].bytes) return options[a].bytes < options[b].bytes;
    if (options[a].loss != options[b].loss) return options[a].loss < options[b].loss;
    return a < b;
  });
  const auto gain = [&](std::size_t a, std::size_t b) {
    return (options[a].loss - options[b].loss) /
           static_cast<double>(options[b].bytes - options[a].bytes);
  };
  std::vector<std::size_t> hull = {order.front()};
  for (const std::size_t i : order) {
    if (!(options[i].loss < options[hull.back()].loss)) continue;
    while (hull.size() > 1 && gain(hull[hull.size() - 2], hull.back()) <= gain(hull.back(), i))
      hull.pop_back();
    hull.push_back(i);
  }
  return hull;
}

/// Spends the remaining bytes on the single changes with the largest gain, until none fits.
void SpendRest(const std::vector<Options>& heads, std::int64_t rest,
               std::vector<std::size_t>& chosen) {
  for (;;) {
    double best_gain = 0;
    std::size_t best_head = 0, best_option = 0;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const PricedOption& now = heads[h][chosen[h]];
      for (std::size_t i = 0; i < heads[h].size(); ++i) {
        const double gain = now.loss - heads[h][i].loss;
        if (heads[h][i].bytes - now.bytes > rest || !(gain > best_gain)) continue;
        best_gain = gain;
        best_head = h;
        best_option = i;
      }
    }
    if (best_gain <= 0) return;
    rest -= heads[best_head][best_option].bytes - heads[best_head][chosen[best_head]].bytes;
    chosen[best_head] = best_option;
  }
}

}  // namespace

std::optional<std::vector<std::size_t>> ChooseOptions(const std::vector<Options>& heads,
                                                      std::int64_t budget) {
  std::vector<std::size_t> chosen;
  std::vector<Step> steps;
  std::int64_t rest = budget;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const std::vector<std::size_t> hull = Hull(heads[h]);
    chosen.push_back(hull.front());
    rest -= heads[h][hull.front()].bytes;
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const PricedOption &from = heads[h][hull[i - 1]], &to = heads[h][hull[i]];
      const std::int64_t bytes = to.bytes - from.bytes;
      steps.push_back({h, i, hull[i], bytes, (from.loss - to.loss) / static_cast<double>(bytes)});
    }
  }
  if (rest < 0) return std::nullopt;
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.gain_per_byte > b.gain_per_byte; });
  std::vector<std::size_t> taken(heads.size(), 0);
  for (const Step& step : steps) {
    if (taken[step.head] + 1 != step.rank || step.bytes > rest) continue;
    taken[step.head] = step.rank;
    chosen[step.head] = step.option;
    rest -= step.bytes;
  }
  SpendRest(heads, rest, chosen);
  return chosen;
}

}  // namespace manyhead
