// Random configurations of the whole operator against the reference in double precision.
//
//   attention_random_test                          a few hundred for each instruction set
//   MANYHEAD_RANDOM_CASES=N attention_random_test  N for each instruction set
//   MANYHEAD_RANDOM_SEED=S                         another sequence of them
//
// A failing configuration prints itself.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/attention/attention_fixture.h"
#include "tests/attention/config_generator.h"

namespace manyhead::testing {
namespace {

std::int64_t FromEnvironment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

class AttentionRandom : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionRandom, ::testing::ValuesIn(kAllIsas), IsaTestName);

TEST_P(AttentionRandom, ConfigurationsMatchTheReference) {
  const std::int64_t cases = FromEnvironment("MANYHEAD_RANDOM_CASES", 200);
  const std::int64_t seed = FromEnvironment("MANYHEAD_RANDOM_SEED", 1);
  std::cout << cases << " configurations of " << IsaName(GetParam()) << ", seed " << seed << "\n";
  constexpr std::int64_t kProducts = 10'000'000;
  ConfigGenerator generator(GetParam(), kProducts,
                            [bits = std::mt19937(static_cast<std::uint32_t>(seed))]() mutable {
                              return static_cast<std::uint32_t>(bits());
                            });
  for (std::int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    CheckConfig(generator.Next());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace manyhead::testing
