#include "manyhead/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

/// Linux gives a process the tiles' 8 KiB of state only when it asks.
bool OsGrantsTiles() noexcept {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// Zeros for a leaf that the CPU does not have. Asked once: on a virtual machine the host answers,
/// which takes microseconds, and a profiled step looks once for each layer.
template <unsigned kLeaf, unsigned kSubleaf>
const CpuidRegisters& Cpuid() noexcept {
  static const CpuidRegisters registers = [] {
    CpuidRegisters bits;
    __get_cpuid_count(kLeaf, kSubleaf, &bits.eax, &bits.ebx, &bits.ecx, &bits.edx);
    return bits;
  }();
  return registers;
}

/// The table behind __builtin_cpu_supports holds a feature only when CPUID has it and XCR0 says
/// that the operating system saves its registers. Features whose names older compilers do not know
/// are looked up in CPUID, beside others that have the same registers.
bool CpuRuns(Isa isa) noexcept {
  constexpr unsigned kF16c = 1U << 29, kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    (Cpuid<1, 0>().ecx & kF16c) != 0;
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAmx:
      return CpuRuns(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16") &&
             (~Cpuid<7, 0>().edx & (kAmxBf16 | kAmxTile)) == 0 && OsGrantsTiles();
  }
  return false;
}

}  // namespace

bool CpuHasVnni(Isa isa) noexcept {
  constexpr std::uint32_t kAvxVnni = 1U << 4;
  if (!CpuRuns(isa) || isa == Isa::kScalar) return false;
  return isa == Isa::kAvx2 ? (Cpuid<7, 1>().eax & kAvxVnni) != 0
                           : __builtin_cpu_supports("avx512vnni") != 0;
}

const char* IsaName(Isa isa) noexcept {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

std::optional<Isa> ParseIsa(std::string_view name) noexcept {
  for (Isa isa : kAllIsas)
    if (name == IsaName(isa)) return isa;
  return std::nullopt;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> supported;
  for (Isa isa : kAllIsas)
    if (CpuRuns(isa)) supported.push_back(isa);
  return supported;
}

Result<Isa> SelectIsa() {
  const Isa best = SupportedIsas().back();
  const char* name = std::getenv("MANYHEAD_ISA");
  if (name == nullptr || *name == '\0') return best;
  const std::optional<Isa> wanted = ParseIsa(name);
  if (!wanted)
    return Status(StatusCode::kInvalidArgument,
                  std::string("MANYHEAD_ISA = ")
                      .append(name)
                      .append("; expected scalar, avx2, avx512 or amx"));
  if (*wanted > best)
    return Status(StatusCode::kUnsupported, std::string("MANYHEAD_ISA = ")
                                                .append(name)
                                                .append("; this CPU runs at most ")
                                                .append(IsaName(best)));
  return *wanted;
}

}  // namespace manyhead
