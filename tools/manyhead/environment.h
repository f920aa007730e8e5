#pragma once

#include <optional>
#include <string>
#include <vector>

#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// The speed at which the CPU runs, as far as the system says so.
struct CpuState {
  std::string governor;  ///< "performance"; empty = unknown
  std::optional<double>
      megahertz;  ///< the present speed of the first CPU that this process may use
};
CpuState ReadCpuState();

/// The compiler of this build, "gcc 12.2.0", and the commit that it was configured at, or
/// "unknown".
std::string CompilerName();
std::string BuildCommit();

/// Adds what figures depend on beside model and flags: versions, CPU, CPUs, governor, frequency
/// before and after.
void AddEnvironment(const CpuState& before, const CpuState& after, Json* row);

/// Reads a mask of CPUs in hexadecimal, "0x0f" or "ff00000000000000000f", of any length: the
/// numbers of its CPUs.
/// Errors   kInvalidArgument naming the text and what was expected.
Result<std::vector<int>> ParseCpuMask(const std::string& text);
/// Restricts this process and the threads that it starts to these CPUs.
/// Errors   kInvalidArgument naming a CPU that it may not use and those that it may.
Status UseCpus(const std::vector<int>& cpus);

/// Warns where more threads are asked for than CPUs may be used.
void WarnOfThreads(std::int64_t threads);

}  // namespace manyhead::cli
