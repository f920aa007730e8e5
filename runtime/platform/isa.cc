#include "manyhead/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"

namespace manyhead {
namespace {

using internal::CpuFeatures;

constexpr const char* kTestCpu = "MANYHEAD_TEST_CPU";
constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

/// Asks Linux for the tiles' 8 KiB of state, which a process gets only on request.
bool OsGrantsTiles() noexcept {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// Returns zeros for a leaf that the CPU does not have.
CpuidRegisters Cpuid(unsigned leaf, unsigned subleaf) noexcept {
  CpuidRegisters bits;
  __get_cpuid_count(leaf, subleaf, &bits.eax, &bits.ebx, &bits.ecx, &bits.edx);
  return bits;
}

/// Detects the features by CPUID and XCR0.
///
/// The table behind __builtin_cpu_supports holds a feature only when CPUID has it and XCR0 says
/// that the operating system saves its registers. Features whose names older compilers do not know
/// are looked up in CPUID, beside others that have the same registers.
CpuFeatures DetectFeatures() noexcept {
  constexpr unsigned kF16c = 1U << 29, kAvxVnni = 1U << 4;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24, kAmxInt8 = 1U << 25;
  CpuFeatures cpu;
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             (Cpuid(1, 0).ecx & kF16c) != 0;
  cpu.avx_vnni = cpu.avx2 && (Cpuid(7, 1).eax & kAvxVnni) != 0;
  cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  cpu.avx512_vnni = cpu.avx512 && __builtin_cpu_supports("avx512vnni");
  cpu.amx = cpu.avx512 && __builtin_cpu_supports("avx512bf16") &&
            (~Cpuid(7, 0).edx & (kAmxBf16 | kAmxTile | kAmxInt8)) == 0 && OsGrantsTiles();
  return cpu;
}

/// The features that kernels may use, or the error in MANYHEAD_TEST_CPU.
struct UsableCpu {
  CpuFeatures features;
  Status status;
};

UsableCpu LimitedByEnvironment(const CpuFeatures& cpu) {
  const char* kind = std::getenv(kTestCpu);
  if (kind == nullptr || *kind == '\0') return {cpu, {}};
  const std::optional<CpuFeatures> wanted = internal::FeaturesOfKind(kind);
  if (!wanted)
    return {{},
            MakeError(StatusCode::kInvalidArgument, kTestCpu, " = ", kind,
                      "; expected scalar, avx2, avx2-vnni, avx512, avx512-vnni or amx")};
  const CpuFeatures both = {wanted->avx2 && cpu.avx2, wanted->avx_vnni && cpu.avx_vnni,
                            wanted->avx512 && cpu.avx512, wanted->avx512_vnni && cpu.avx512_vnni,
                            wanted->amx && cpu.amx};
  if (both != *wanted)
    return {both, MakeError(StatusCode::kUnsupported, kTestCpu, " = ", kind,
                            "; this CPU lacks some of its features")};
  return {both, {}};
}

/// Detects the features once: on a virtual machine the host answers CPUID, which takes
/// microseconds, and a profiled step needs them once for each layer.
const UsableCpu& Cpu() {
  static const UsableCpu cpu = LimitedByEnvironment(DetectFeatures());
  return cpu;
}

bool CpuRuns(Isa isa) noexcept {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return Cpu().features.avx2;
    case Isa::kAvx512:
      return Cpu().features.avx512;
    case Isa::kAmx:
      return Cpu().features.amx;
  }
  return false;
}

}  // namespace

std::optional<CpuFeatures> internal::FeaturesOfKind(std::string_view kind) noexcept {
  struct Kind {
    std::string_view name;
    CpuFeatures features;
  };
  constexpr Kind kKinds[] = {
      {"scalar", {}},
      {"avx2", {.avx2 = true}},
      {"avx2-vnni", {.avx2 = true, .avx_vnni = true}},
      {"avx512", {.avx2 = true, .avx512 = true}},
      {"avx512-vnni", {.avx2 = true, .avx512 = true, .avx512_vnni = true}},
      {"amx", {true, true, true, true, true}},
  };
  for (const Kind& known : kKinds)
    if (known.name == kind) return known.features;
  return std::nullopt;
}

bool CpuHasVnni(Isa isa) noexcept {
  const CpuFeatures& cpu = Cpu().features;
  switch (isa) {
    case Isa::kScalar:
      return false;
    case Isa::kAvx2:
      return cpu.avx_vnni;
    case Isa::kAvx512:
      return cpu.avx512_vnni;
    case Isa::kAmx:
      return cpu.amx && cpu.avx512_vnni;
  }
  return false;
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

Status CheckIsa(std::string_view where, Isa isa) {
  if (CpuRuns(isa)) return {};
  const bool named = isa <= Isa::kAmx;
  return Unsupported(where, "isa = ", named ? IsaName(isa) : std::to_string(static_cast<int>(isa)),
                     "; this CPU runs at most ", IsaName(SupportedIsas().back()));
}

Result<Isa> ResolveIsa(std::string_view where, std::optional<Isa> wanted) {
  if (!wanted) return SelectIsa();
  if (Status status = CheckIsa(where, *wanted); !status.ok()) return status;
  return *wanted;
}

Result<Isa> SelectIsa() {
  if (!Cpu().status.ok()) return Cpu().status;
  const Isa best = SupportedIsas().back();
  const char* name = std::getenv("MANYHEAD_ISA");
  if (name == nullptr || *name == '\0') return best;
  const std::optional<Isa> wanted = ParseIsa(name);
  if (!wanted)
    return MakeError(StatusCode::kInvalidArgument, "MANYHEAD_ISA = ", name,
                     "; expected scalar, avx2, avx512 or amx");
  if (!CpuRuns(*wanted))
    return MakeError(StatusCode::kUnsupported, "MANYHEAD_ISA = ", name, "; this CPU runs at most ",
                     IsaName(best));
  return *wanted;
}

}  // namespace manyhead
