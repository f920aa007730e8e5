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
  int shared_by = 1;  ///< number of logical CPUs that share the cache
};

/// Returns e.g. "Intel(R) Xeon(R) Processor"; "unknown" if the system gives no name.
std::string CpuName();
int OnlineCpus();
/// CPUs in this process's affinity mask, however many the machine has: their numbers, ascending,
/// and how many they are.
std::vector<int> AllowedCpuList();
int AllowedCpus();
/// Restricts this process to CPUs of that list. Returns whether the system did so.
bool SetAllowedCpus(const std::vector<int>& cpus);
/// The value of a field in /proc/cpuinfo, of the first CPU; "" if there is none.
std::string CpuField(const std::string& name);
/// The caches of the first CPU, nearest first; empty if the system does not tell.
std::vector<CpuCache> CpuCaches();
/// Returns the bytes of memory that can be used without swapping; 0 if unknown.
std::int64_t AvailableMemoryBytes();
/// Returns the largest number of bytes that this process has held so far.
std::int64_t PeakResidentBytes();

/// The rate at which `threads` threads together can read memory: the best of several passes of a
/// plain read over a buffer larger than the caches (at most 1 GiB and a quarter of the memory
/// available). Measuring takes a fraction of a second.
struct Bandwidth {
  double bytes_per_second = 0;
  std::int64_t buffer_bytes = 0;
  int threads = 0;
};
Bandwidth MeasureReadBandwidth(int threads);

/// Returns the floating-point operations per second of `threads` threads that only run f32 FMAs of
/// `isa`, which this CPU must support: the best of several passes of 0.1 s.
double MeasureFlops(Isa isa, int threads);

/// The largest rates that this machine reaches.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;

  /// Returns the least seconds in which it reads `bytes` and computes `flops`; 0 for neither.
  double Bound(double bytes, double flops) const {
    return std::max(bytes / bytes_per_second, flops / flops_per_second);
  }
};
/// Measures both rates in half a second.
Roofline MeasureRoofline(Isa isa, int threads);

}  // namespace manyhead::cli
