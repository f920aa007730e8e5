#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace manyhead {

/// One way to store a head.
struct PricedOption {
  std::int64_t bytes = 0;
  double loss = 0;  ///< not NaN; infinite ones are taken only where a head has no other
};

/// One option for each head, whose bytes sum up to no more than `budget`, with a low sum of losses:
/// no single change within the budget lowers it. Nothing when even the smallest do not fit. Each
/// head has at least one option.
///
/// Cost   sorting the options, and a pass over all of them for each change of the last steps.
std::optional<std::vector<std::size_t>> ChooseOptions(
    const std::vector<std::vector<PricedOption>>& heads, std::int64_t budget);

}  // namespace manyhead
