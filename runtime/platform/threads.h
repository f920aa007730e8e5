#pragma once

#include <span>
#include <string>
#include <vector>

#include "manyhead/threads.h"

namespace manyhead::internal {

/// Returns the number of CPUs that the cgroup quota under `root` (normally "/") allows, v2 then v1;
/// 0 = no limit found.
int CgroupCpuLimit(const std::string& root);

/// Returns DefaultThreads() for a thread that may run on `cpus`, with the quota and topology under
/// `root`.
int ThreadsFor(const std::string& root, std::span<const int> cpus);

/// Returns the CPUs of the calling thread's affinity mask, in order; none when the mask cannot be
/// read.
std::vector<int> AffinityCpus();

}  // namespace manyhead::internal
