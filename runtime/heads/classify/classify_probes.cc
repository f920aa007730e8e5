#include "runtime/heads/classify/classify_probes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace manyhead {
namespace {

/// SplitMix64 (doi:10.1145/2660193.2660195), which gives the same numbers with every standard
/// library.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  /// Returns a number in [0, count). The bias, count / 2^32, does not matter here.
  std::size_t Below(std::size_t count) noexcept {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    return static_cast<std::size_t>((z >> 32) * static_cast<std::uint64_t>(count) >> 32);
  }

 private:
  std::uint64_t state_;
};

/// Draws `count` different tokens of `ordinary`, which holds fewer than 2^32.
std::vector<TokenId> Draw(const std::vector<TokenId>& ordinary, std::int64_t count,
                          Random& random) {
  std::vector<TokenId> drawn;
  while (static_cast<std::int64_t>(drawn.size()) < count) {
    const TokenId id = ordinary[random.Below(ordinary.size())];
    if (std::find(drawn.begin(), drawn.end(), id) == drawn.end()) drawn.push_back(id);
  }
  return drawn;
}

std::vector<TokenId> OrdinaryTokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> ordinary;
  for (std::int64_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!tokenizer.is_control(id) && !tokenizer.Piece(id).empty()) ordinary.push_back(id);
  }
  return ordinary;
}

void Append(std::vector<TokenId>& ids, std::span<const TokenId> more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

std::int64_t Length(const std::vector<TokenId>& ids) {
  return static_cast<std::int64_t>(ids.size());
}

/// Makes a probe of one token, for models whose first position is special, then random tokens
/// twice.
Probe MakeRepeat(const Tokenizer& tokenizer, const std::vector<TokenId>& ordinary, Random& random) {
  const std::vector<TokenId> drawn = Draw(ordinary, kPeriod + 1, random);
  Probe probe{ProbeKind::kRepeat, {tokenizer.bos().value_or(drawn[0])}, 1, kPeriod, 1 + kPeriod};
  for (int copy = 0; copy < 2; ++copy) Append(probe.ids, std::span(drawn).subspan(1));
  return probe;
}

Probe MakeNeedle(std::span<const TokenId> text, std::int64_t begin,
                 const std::vector<TokenId>& ordinary, Random& random) {
  const std::vector<TokenId> needle = Draw(ordinary, kNeedleTokens, random);
  Probe probe{ProbeKind::kNeedle, {}, begin, kNeedleTokens, 0};
  Append(probe.ids, text.first(static_cast<std::size_t>(begin)));
  Append(probe.ids, needle);
  Append(probe.ids, text.subspan(static_cast<std::size_t>(begin)));
  probe.again = Length(probe.ids);
  Append(probe.ids, needle);
  return probe;
}

}  // namespace

std::string_view ProbeText() noexcept {
  return "The ferry to the island leaves twice a day, early in the morning and again when the "
         "light begins to fade. Marta had taken the second one, because her train was late, and "
         "now she stood at the rail with a paper bag of cherries and watched the harbour grow "
         "small. A boy beside her counted the boats. He counted in a whisper, starting again "
         "whenever a gull flew across, and he never got further than nineteen.\n\n"
         "\"Do you live over there?\" he asked without looking up.\n\n"
         "\"My aunt does,\" said Marta. \"She keeps bees, and she has asked me to help her move "
         "the hives before the storms come. I have never touched a hive in my life.\"\n\n"
         "The boy thought about this. \"Bees do not sting people who move slowly,\" he said. \"My "
         "grandfather told me. He repairs clocks, so he is the slowest man on the island.\"\n\n"
         "They ate the cherries and threw the stones into the water. When the ferry turned round "
         "the breakwater the wind came up, cold and full of salt, and most of the passengers went "
         "inside. Marta stayed. From here she could see the lighthouse, the row of white houses "
         "below it, and a single yellow lamp that moved along the quay: her aunt, who carried a "
         "lantern although the street was lit, because she did not trust anything that was "
         "switched on by somebody else.\n\n"
         "Later, in the kitchen, the old woman explained the work. A hive must be closed in the "
         "evening, when all the bees are at home. It is carried level, never tilted, and set down "
         "facing the same way as before. On the first day a few workers will fly back to the old "
         "place and find nothing; by the second day they have learned the new one. \"They are "
         "better at it than we are,\" said her aunt. \"I have lived in this house for forty years, "
         "and in the dark my hand still looks for the switch on the wrong side of the door.\"\n\n"
         "They moved nine hives in three nights. On the last evening the boy appeared at the "
         "gate, with a clock under his arm that he was not allowed to drop, and asked how many "
         "bees there were. \"Count them,\" said the aunt. He sat down on the wall and began.";
}

Result<std::vector<Probe>> MakeProbes(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                      std::uint64_t seed) {
  const std::vector<TokenId> ordinary = OrdinaryTokens(tokenizer);
  if (Length(ordinary) < 2 * kPeriod)
    return Status(StatusCode::kInvalidArgument,
                  "ClassifyHeads: ordinary tokens = " + std::to_string(ordinary.size()) +
                      "; expected at least " + std::to_string(2 * kPeriod));
  std::vector<Probe> probes;
  const auto size = static_cast<std::int64_t>(text.size());
  const auto first = [&](std::int64_t count) {
    return text.first(static_cast<std::size_t>(std::min(size, count)));
  };
  probes.push_back({ProbeKind::kText, {}, 0, 0, 0});
  Append(probes.back().ids, first(kMostText));
  Random random(seed);
  for (std::int64_t i = 0; i < kRepeats; ++i)
    probes.push_back(MakeRepeat(tokenizer, ordinary, random));
  const std::span<const TokenId> haystack = first(kHaystack);
  const auto straws = static_cast<std::int64_t>(haystack.size());
  for (const std::int64_t depth : {straws / 20, straws / 5, straws / 3})
    probes.push_back(MakeNeedle(haystack, depth, ordinary, random));
  return probes;
}

}  // namespace manyhead
