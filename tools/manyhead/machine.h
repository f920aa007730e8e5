#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/isa.h"

namespace manyhead::cli {

struct CpuCache {
  int level = 0;
  std::string type;  ///< "Data", "Instruction", "Unified"
  std::int64_t size_bytes = 0;
  int shared_by = 1;  ///< logical CPUs that use the same one
};

/// "Intel(R) Xeon(R) Processor"; "unknown" if the system does not tell.
std::string CpuName();
int OnlineCpus();
/// CPUs in this process's affinity mask.
int AllowedCpus();
/// The caches of the first CPU, nearest first; empty if the system does not tell.
std::vector<CpuCache> CpuCaches();
/// Bytes of memory that can be used without swapping; 0 if unknown.
std::int64_t AvailableMemoryBytes();
/// The most bytes of memory this process has held so far.
std::int64_t PeakResidentBytes();

/// Bytes per second at which `threads` threads together can read memory: the best of several passes
/// of a plain read over a buffer larger than the caches (at most 1 GiB and a quarter of the memory
/// available). Takes a fraction of a second.
struct Bandwidth {
  double bytes_per_second = 0;
  std::int64_t buffer_bytes = 0;
  int threads = 0;
};
Bandwidth MeasureReadBandwidth(int threads);

/// Floating-point operations per second of `threads` threads that do nothing but f32 FMAs of `isa`
/// (which this CPU runs): the best of several passes, 0.1 s.
double MeasureFlops(Isa isa, int threads);

/// What this machine can do at most.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;

  /// The least seconds in which it reads `bytes` and computes `flops`; 0 for neither.
  double Bound(double bytes, double flops) const {
    return std::max(bytes / bytes_per_second, flops / flops_per_second);
  }
};
/// Both of the above, in half a second.
Roofline MeasureRoofline(Isa isa, int threads);

}  // namespace manyhead::cli
