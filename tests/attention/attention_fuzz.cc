#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "tests/attention/attention_fixture.h"
#include "tests/attention/config_generator.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_bytes.h"
#include "tests/support/isas.h"

// Any bytes as choices of shapes, types, masks and numbers: every instruction set of this CPU comes
// within the derived bound of one reference in double precision, and so of each other.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using manyhead::testing::ConfigGenerator;
  using manyhead::testing::FuzzBytes;
  constexpr std::int64_t kProducts = 100'000;
  for (const manyhead::Isa isa : manyhead::testing::kAllIsas) {
    if (!manyhead::CpuRuns(isa)) continue;
    FuzzBytes bytes(data, size);
    ConfigGenerator generator(isa, kProducts,
                              [&] { return std::uint32_t{bytes.Take<std::uint16_t>()}; });
    manyhead::testing::CheckConfig(generator.Next());
  }
  FuzzCheck(!testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  constexpr int kSeeds = 24, kChoices = 80;  // a configuration takes some 60 choices
  std::mt19937 random(1);
  std::vector<std::string> seeds(kSeeds);
  for (std::string& seed : seeds)
    for (int i = 0; i < 2 * kChoices; ++i) seed += static_cast<char>(random());
  return seeds;
}
