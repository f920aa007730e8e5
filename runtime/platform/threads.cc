#include "runtime/platform/threads.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "runtime/platform/cpu_mask.h"
#include "runtime/platform/team_backend.h"
#include "runtime/platform/team_openmp.h"

namespace manyhead {
namespace {

std::string ReadFirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the path of this process's cgroup for `controller` (empty = the v2 hierarchy), "" when
/// unknown.
std::string CgroupPath(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? controllers == ",,"
                           : controllers.find("," + controller + ",") != std::string::npos)
      return line.substr(second + 1);
  }
  return "";
}

/// Returns the whole CPUs of quota / period, at least 1; 0 when there is no quota.
int WholeCpus(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return 0;
  return std::max(1, static_cast<int>(std::min(quota / period, 1e6)));
}

int QuotaV2(const std::string& folder) {
  std::istringstream line(ReadFirstLine(folder + "/cpu.max"));
  std::string quota;
  double period = 0;
  if (!(line >> quota >> period) || quota == "max") return 0;
  return WholeCpus(std::strtod(quota.c_str(), nullptr), period);
}

int QuotaV1(const std::string& folder) {
  return WholeCpus(std::strtod(ReadFirstLine(folder + "/cpu.cfs_quota_us").c_str(), nullptr),
                   std::strtod(ReadFirstLine(folder + "/cpu.cfs_period_us").c_str(), nullptr));
}

int Tighter(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

/// Returns the least quota of a group and its ancestors, each of which limits the groups below.
template <class Quota>
int LeastQuota(const std::string& mount, std::string path, Quota quota) {
  int limit = quota(mount);
  while (path.size() > 1) {
    limit = Tighter(limit, quota(mount + path));
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
  return limit;
}

/// Counts CPUs, where SMT siblings count once: they name the same list.
int CountCores(const std::string& root, std::span<const int> cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string siblings =
        ReadFirstLine(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                      "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

}  // namespace

namespace internal {

int CgroupCpuLimit(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  int limit = LeastQuota(mount, CgroupPath(root, ""), QuotaV2);
  for (const char* name : {"/cpu", "/cpu,cpuacct"})
    limit = Tighter(limit, LeastQuota(mount + name, CgroupPath(root, "cpu"), QuotaV1));
  return limit;
}

int ThreadsFor(const std::string& root, std::span<const int> cpus) {
  const int limit = CgroupCpuLimit(root);
  const int cores = CountCores(root, cpus);
  return limit == 0 ? cores : std::min(cores, limit);
}

std::vector<int> AffinityCpus() {
  std::vector<int> cpus;
  CpuMask mask;
  if (!mask.Read()) return cpus;
  for (int cpu = 0; cpu < mask.size(); ++cpu)
    if (mask.Has(cpu)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace internal

int DefaultThreads() {
  std::vector<int> cpus;
  if (const Result<Team> team = SelectTeam(); team.ok() && *team == Team::kOpenMp)
    cpus = internal::OpenMpCpus();
  if (cpus.empty()) cpus = internal::AffinityCpus();
  return std::min(internal::ThreadsFor("", cpus), internal::TeamLimit());
}

}  // namespace manyhead
