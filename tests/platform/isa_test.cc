#include "runtime/platform/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

using internal::CpuFeatures;
using internal::FeaturesOfKind;
using ::testing::HasSubstr;

TEST(Isa, EnvironmentLowersButNeverRaises) {
  unsetenv("MANYHEAD_ISA");
  const Isa best = SupportedIsas().back();
  ASSERT_TRUE(SelectIsa().ok());
  EXPECT_EQ(*SelectIsa(), best);

  setenv("MANYHEAD_ISA", "scalar", 1);
  EXPECT_EQ(*SelectIsa(), Isa::kScalar);

  setenv("MANYHEAD_ISA", "sse9", 1);
  EXPECT_EQ(SelectIsa().status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(SelectIsa().status().message(), HasSubstr("MANYHEAD_ISA = sse9"));

  if (best < Isa::kAmx) {
    setenv("MANYHEAD_ISA", "amx", 1);
    EXPECT_EQ(SelectIsa().status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(SelectIsa().status().message(), HasSubstr(IsaName(best)));
  }
  unsetenv("MANYHEAD_ISA");
}

TEST(Isa, RefusalsNameTheSetAndTheBestOfThisCpu) {
  const Isa best = SupportedIsas().back();
  const auto refusal = [&](const std::string& isa) {
    return "F: isa = " + isa + "; this CPU runs at most " + IsaName(best);
  };
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const Status status = CheckIsa("F", isa);
    const Result<Isa> resolved = ResolveIsa("F", isa);
    if (isa <= best) {
      EXPECT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(resolved.ok()) << resolved.status().message();
      EXPECT_EQ(*resolved, isa);
      continue;
    }
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_EQ(status.message(), refusal(IsaName(isa)));
    EXPECT_EQ(resolved.status().message(), status.message());
  }
  EXPECT_EQ(CheckIsa("F", static_cast<Isa>(77)).message(), refusal("77"));
  ASSERT_TRUE(ResolveIsa("F", std::nullopt).ok());
  EXPECT_EQ(*ResolveIsa("F", std::nullopt), *SelectIsa());
}

TEST(Isa, KindsOfCpuContainTheirSmallerOnes) {
  EXPECT_EQ(*FeaturesOfKind("scalar"), CpuFeatures());
  EXPECT_EQ(*FeaturesOfKind("avx2"), (CpuFeatures{.avx2 = true}));
  EXPECT_EQ(*FeaturesOfKind("avx2-vnni"), (CpuFeatures{.avx2 = true, .avx_vnni = true}));
  EXPECT_EQ(*FeaturesOfKind("avx512"), (CpuFeatures{.avx2 = true, .avx512 = true}));
  EXPECT_EQ(*FeaturesOfKind("avx512-vnni"),
            (CpuFeatures{.avx2 = true, .avx512 = true, .avx512_vnni = true}));
  EXPECT_EQ(*FeaturesOfKind("amx"), (CpuFeatures{true, true, true, true, true}));
  for (const char* unknown : {"", "AVX2", "avx512-", "amx ", "sse9"})
    EXPECT_FALSE(FeaturesOfKind(unknown).has_value()) << unknown;
}

/// Reported and dispatched features agree for the kind of CPU that the environment selects.
TEST(Isa, TheCpuIsTheKindThatTheEnvironmentNames) {
  const char* kind = std::getenv("MANYHEAD_TEST_CPU");
  if (kind != nullptr && *kind != '\0') {
    const std::optional<CpuFeatures> features = FeaturesOfKind(kind);
    ASSERT_TRUE(features.has_value()) << kind;
    ASSERT_TRUE(SelectIsa().ok()) << SelectIsa().status().message();
    EXPECT_EQ(CheckIsa("F", Isa::kAvx2).ok(), features->avx2);
    EXPECT_EQ(CheckIsa("F", Isa::kAvx512).ok(), features->avx512);
    EXPECT_EQ(CheckIsa("F", Isa::kAmx).ok(), features->amx);
    EXPECT_EQ(CpuHasVnni(Isa::kAvx2), features->avx_vnni);
    EXPECT_EQ(CpuHasVnni(Isa::kAvx512), features->avx512_vnni);
  }
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    const kernels::PackedKernels* plain =
        isa == Isa::kAvx2 ? &kernels::avx2::kPacked : &kernels::avx512::kPacked;
    const kernels::PackedKernels* vnni =
        isa == Isa::kAvx2 ? &kernels::avx2_vnni::kPacked : &kernels::avx512_vnni::kPacked;
    EXPECT_EQ(KernelsFor(isa).packed, CpuHasVnni(isa) ? vnni : plain) << IsaName(isa);
    EXPECT_EQ(KernelsFor(isa).tiles != nullptr, isa == Isa::kAmx) << IsaName(isa);
  }
}

/// A process of its own, since the variable is read once.
TEST(IsaDeathTest, WrongKindsAreRefused) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto report = [](const char* kind) {
    setenv("MANYHEAD_TEST_CPU", kind, 1);
    const Result<Isa> isa = SelectIsa();
    std::fputs(isa.ok() ? IsaName(*isa) : isa.status().message().c_str(), stderr);
    std::fprintf(stderr, " of %zu", SupportedIsas().size());
    std::exit(3);
  };
  EXPECT_EXIT(report("sse9"), ::testing::ExitedWithCode(3),
              "MANYHEAD_TEST_CPU = sse9; expected scalar, avx2.* of 1");
}

}  // namespace
}  // namespace manyhead
