#pragma once

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// The largest thread count that anything here accepts.
inline constexpr int kMaxThreads = 1024;

/// The thread count used where the caller gives none: the CPUs in this thread's affinity mask, no
/// more than the cgroup's quota rounded down, at least 1. SMT siblings count once. Sockets are not
/// told apart: bind the program to one (numactl) where memory of another would be read slowly.
int DefaultThreads();

}  // namespace manyhead
