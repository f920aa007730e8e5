#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace manyhead {

/// The cost of one way to store a head.
struct PricedOption {
  std::int64_t bytes = 0;
  double loss = 0;  ///< not NaN; an infinite loss is chosen only where a head has no other option
};

/// Chooses one option for each head such that the bytes sum up to no more than `budget` and the sum
/// of losses is low: no single change within the budget lowers it. Returns nothing when even the
/// smallest options do not fit. Each head must have at least one option.
///
/// Cost     sorting the options, and a pass over all of them for each change of the last steps.
std::optional<std::vector<std::size_t>> ChooseOptions(
    const std::vector<std::vector<PricedOption>>& heads, std::int64_t budget);

}  // namespace manyhead
