#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/status.h"

namespace MANYHEAD_API manyhead {

/// Instruction sets that kernels are built for. A CPU that runs one also runs those before it.
enum class Isa : unsigned char {
  kScalar,  ///< baseline x86-64
  kAvx2,    ///< AVX2, FMA, F16C
  kAvx512,  ///< AVX-512 F, CD, BW, DQ, VL
  kAmx,     ///< also AVX512-BF16 and AMX tiles of bf16 and int8, for products of many rows
};

/// Returns "scalar", "avx2", "avx512" or "amx".
const char* IsaName(Isa isa) noexcept;
/// Parses a name that IsaName returns; returns nothing for any other name.
std::optional<Isa> ParseIsa(std::string_view name) noexcept;

/// Returns the instruction sets that this CPU and its operating system can run (CPUID and XCR0),
/// lowest first. The first call asks the operating system for AMX on behalf of the process.
std::vector<Isa> SupportedIsas();

/// Returns the best supported set, or the lower one that the environment variable MANYHEAD_ISA
/// names.
///
/// Errors   kInvalidArgument for an unknown name, kUnsupported for a set above what the CPU runs.
Result<Isa> SelectIsa();

}  // namespace manyhead
