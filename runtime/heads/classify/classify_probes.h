#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/tokenizer.h"

namespace manyhead {

inline constexpr std::int64_t kLeastText = 256, kMostText = 512;  ///< in tokens
inline constexpr std::int64_t kRepeats = 4, kPeriod = 50;
inline constexpr std::int64_t kNeedles = 3, kNeedleTokens = 16;
/// Largest number of tokens of a text with a needle, which is repeated after it.
inline constexpr std::int64_t kHaystack = 384;
inline constexpr std::int64_t kProbeContext = kMostText;  ///< no probe is longer
static_assert(kHaystack + 2 * kNeedleTokens <= kProbeContext);

/// Returns prose for models to read when the caller supplies none.
std::string_view ProbeText() noexcept;

/// Makes the probes of a text of at least kLeastText tokens: the text itself, random tokens that
/// appear twice, and needles after a twentieth, a fifth and a third of the text. Random tokens are
/// no control tokens, and all differ within a probe.
/// Errors   kInvalidArgument for a vocabulary with too few ordinary tokens.
Result<std::vector<Probe>> MakeProbes(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                      std::uint64_t seed);

}  // namespace manyhead
