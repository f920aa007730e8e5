#pragma once

#include <vector>

namespace manyhead::internal {

/// The most threads that OpenMP gives a region which the calling thread opens: OMP_NUM_THREADS,
/// omp_set_num_threads, or else its CPUs.
int OpenMpThreads() noexcept;

/// The CPUs of OpenMP's places; none where the host names none. A thread that OpenMP has bound to
/// its place has an affinity mask of that place alone, which says nothing of the others.
std::vector<int> OpenMpCpus();

/// Whether the calling thread's OpenMP threads were left behind by a fork. GNU's OpenMP would wait
/// for them for ever.
bool OpenMpIsLost() noexcept;

}  // namespace manyhead::internal
