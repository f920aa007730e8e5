#include "tools/manyhead/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tools/manyhead/parse.h"

namespace manyhead::cli {
namespace {

/// Returns the value after "key : " in a file of such lines; "" if there is none.
std::string FindValue(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// CPUs in a list such as "0-3,8".
int CountCpus(const std::string& list) {
  std::istringstream stream(list);
  int count = 0;
  for (std::string range; std::getline(stream, range, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream bounds(range);
    if (!(bounds >> first)) continue;
    count += bounds >> dash >> last ? last - first + 1 : 1;
  }
  return std::max(1, count);
}

}  // namespace

std::string CpuName() {
  const std::string name = CpuField("model name");
  return name.empty() ? "unknown" : name;
}

int OnlineCpus() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))); }

std::vector<int> AllowedCpuList() {
  std::vector<int> list;
  // Larger than cpu_set_t where the machine has more than 1024 CPUs.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 20) && list.empty(); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(cpus);
    if (sched_getaffinity(0, size, set) == 0)
      for (int cpu = 0; cpu < cpus; ++cpu)
        if (CPU_ISSET_S(cpu, size, set)) list.push_back(cpu);
    CPU_FREE(set);
  }
  return list;
}

int AllowedCpus() {
  const std::size_t count = AllowedCpuList().size();
  return count > 0 ? static_cast<int>(count) : OnlineCpus();
}

bool SetAllowedCpus(const std::vector<int>& cpus) {
  const int most = *std::max_element(cpus.begin(), cpus.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(most);
  if (set == nullptr) return false;
  const std::size_t size = CPU_ALLOC_SIZE(most);
  CPU_ZERO_S(size, set);
  for (const int cpu : cpus) CPU_SET_S(cpu, size, set);
  const bool done = sched_setaffinity(0, size, set) == 0;
  CPU_FREE(set);
  return done;
}

std::string CpuField(const std::string& name) { return FindValue("/proc/cpuinfo", name); }

std::vector<CpuCache> CpuCaches() {
  std::vector<CpuCache> caches;
  for (int i = 0;; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    CpuCache cache;
    cache.level = static_cast<int>(ParseSize(ReadLine(folder + "level")).value_or(0));
    if (cache.level == 0) break;
    cache.type = ReadLine(folder + "type");
    cache.size_bytes = ParseSize(ReadLine(folder + "size")).value_or(0);
    cache.shared_by = CountCpus(ReadLine(folder + "shared_cpu_list"));
    caches.push_back(cache);
  }
  return caches;
}

std::int64_t AvailableMemoryBytes() {
  std::istringstream value(FindValue("/proc/meminfo", "MemAvailable"));
  std::int64_t kib = 0;
  value >> kib;
  return kib * 1024;
}

std::int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace manyhead::cli
