#pragma once

#include <optional>
#include <string_view>

#include "manyhead/isa.h"

namespace manyhead {

/// Returns kUnsupported, which names `isa` and the best set of this CPU, unless this CPU runs it.
/// `where` begins the message.
Status CheckIsa(std::string_view where, Isa isa);

/// Returns `wanted` where CheckIsa allows it, and SelectIsa() where nothing is wanted.
Result<Isa> ResolveIsa(std::string_view where, std::optional<Isa> wanted);

/// Returns whether this CPU has VNNI's dot products in the vectors of `isa`: AVX-VNNI beside AVX2,
/// AVX512-VNNI beside AVX-512 and AMX.
bool CpuHasVnni(Isa isa) noexcept;

namespace internal {

/// The features of a CPU and its operating system that decide which kernels run.
struct CpuFeatures {
  bool avx2 = false;  ///< includes FMA and F16C
  bool avx_vnni = false;
  bool avx512 = false;  ///< F, CD, BW, DQ and VL
  bool avx512_vnni = false;
  bool amx = false;  ///< includes AVX512-BF16

  bool operator==(const CpuFeatures&) const = default;
};

/// Returns the features of a kind of CPU: "scalar", "avx2", "avx2-vnni", "avx512", "avx512-vnni" or
/// "amx"; nothing for any other name.
///
/// For tests: the environment variable MANYHEAD_TEST_CPU makes the whole process behave as on a CPU
/// of that kind, so that one machine runs what tests do on all of them. It is read once. SelectIsa
/// refuses a name that is unknown, and a kind whose features this CPU lacks. MANYHEAD_ISA is not
/// the same: it lowers the default, while every set that the CPU has can still be asked for.
std::optional<CpuFeatures> FeaturesOfKind(std::string_view kind) noexcept;

}  // namespace internal
}  // namespace manyhead
