#pragma once

#include <string>

#include "manyhead/threads.h"

namespace manyhead::internal {

/// CPUs the cgroup quota under `root` (normally "/") allows, v2 then v1; 0 = no limit found.
int CgroupCpuLimit(const std::string& root);

}  // namespace manyhead::internal
