#pragma once

#include <string>

namespace manyhead {

/// The thread count used where the caller gives none: the CPUs in this thread's affinity mask, no
/// more than the cgroup's quota rounded down, at least 1. SMT siblings count once.
int DefaultThreads();

namespace internal {
/// CPUs the cgroup quota under `root` (normally "/") allows, v2 then v1; 0 = no limit found.
int CgroupCpuLimit(const std::string& root);
}  // namespace internal

}  // namespace manyhead
