#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "manyhead/isa.h"

namespace manyhead {

inline constexpr Isa kEveryIsa[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

/// True when this CPU runs `isa`.
inline bool CpuRuns(Isa isa) {
  const auto supported = SupportedIsas();
  return std::find(supported.begin(), supported.end(), isa) != supported.end();
}

/// True when MANYHEAD_REQUIRE_ISA names `isa`: then a test that cannot run it fails instead of
/// skipping.
inline bool IsaRequired(Isa isa) {
  const char* required = std::getenv("MANYHEAD_REQUIRE_ISA");
  return required != nullptr && std::string(required) == IsaName(isa);
}

inline std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

}  // namespace manyhead

/// At the head of a test that runs kernels of `isa`.
#define MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa)                                \
  if (!::manyhead::CpuRuns(isa)) {                                        \
    ASSERT_FALSE(::manyhead::IsaRequired(isa)) << "MANYHEAD_REQUIRE_ISA"; \
    GTEST_SKIP() << "this CPU does not run " << ::manyhead::IsaName(isa); \
  }                                                                       \
  static_assert(true)
