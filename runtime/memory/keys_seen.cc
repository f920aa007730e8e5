#include "runtime/memory/keys_seen.h"

#include <algorithm>

#include "runtime/memory/kv_plan.h"

namespace manyhead {
namespace {

/// Returns the sum of min(i, most) over i = 1 ... count; 0 for a negative count.
std::int64_t SumUpTo(std::int64_t count, std::int64_t most, CheckedMath& math) noexcept {
  if (count <= 0 || most <= 0) return 0;
  const std::int64_t w = std::min(most, count);
  // One of two neighbours is even: it is halved before the product, which may be near the limit.
  const std::int64_t triangle =
      math.Product({w % 2 == 0 ? w / 2 : w, w % 2 == 0 ? w + 1 : (w + 1) / 2});
  std::int64_t sum = math.Product({count - w, w});
  math.Add(sum, triangle);
  return sum;
}

}  // namespace

std::int64_t KeysSeen::OfLast(std::int64_t tokens) const noexcept {
  if (head_.off()) return 0;
  const std::int64_t window = WindowOf(tokens);
  if (head_.scored()) return std::min(window, HeldAfterEviction(head_, tokens - 1).tokens + 1);
  const std::int64_t recent = std::min({tokens, window, head_.recent});
  // Sink tokens that are older than the recent ones, less those that the layer's window hides.
  const std::int64_t older = std::min(head_.sink, tokens - recent);
  const std::int64_t hidden = std::min(older, std::max<std::int64_t>(0, tokens - window));
  return recent + older - hidden;
}

std::int64_t KeysSeen::Pairs(std::int64_t tokens, CheckedMath& math) const noexcept {
  if (head_.off()) return 0;
  if (head_.scored()) return BudgetPairs(tokens, math);
  const std::int64_t window = WindowOf(tokens);
  std::int64_t pairs = SumUpTo(tokens, std::min(window, head_.recent), math);
  if (head_.recent < window) {
    math.Add(pairs, SumUpTo(tokens - head_.recent, head_.sink, math));
    math.Add(pairs, -SumUpTo(tokens - window, head_.sink, math));
  }
  return pairs;
}

/// Counts the keys in a step of `count` tokens from `length` on: each query sees the tokens held
/// before the step, and the step's tokens up to itself.
std::int64_t KeysSeen::StepPairs(std::int64_t length, std::int64_t count,
                                 CheckedMath& math) const noexcept {
  const std::int64_t held = HeldAfterEviction(head_, length).tokens;
  const std::int64_t window = WindowOf(length + count);
  return SumUpTo(held + count, window, math) - SumUpTo(held, window, math);
}

std::int64_t KeysSeen::BudgetPairs(std::int64_t tokens, CheckedMath& math) const noexcept {
  // Steps that begin within the budget see every token.
  const std::int64_t steps = tokens / step_;  // whole ones
  const std::int64_t free = std::min(steps, head_.params.policy.budget / step_ + 1);
  std::int64_t pairs = SumUpTo(free * step_, WindowOf(tokens), math);
  // Beyond it a head holds as many tokens page_size steps later.
  const std::int64_t period = head_.layout.page_size, rest = steps - free;
  for (std::int64_t i = 0; i < std::min(period, rest); ++i) {
    const std::int64_t times = (rest - i + period - 1) / period;
    math.Add(pairs, math.Product({times, StepPairs((free + i) * step_, step_, math)}));
  }
  math.Add(pairs, StepPairs(steps * step_, tokens % step_, math));
  return pairs;
}

}  // namespace manyhead
