#pragma once

#include <vector>

namespace manyhead::internal {

/// Returns the largest number of threads that OpenMP gives a region of the calling thread:
/// OMP_NUM_THREADS, omp_set_num_threads, or else its CPUs.
int OpenMpThreads() noexcept;

/// Returns the CPUs of OpenMP's places; none where the host names none. The affinity mask of a
/// thread that OpenMP has bound to a place holds that place alone, and says nothing about the
/// others.
std::vector<int> OpenMpCpus();

/// Returns true where the calling thread's OpenMP threads stayed behind in the parent of a fork.
/// GNU's OpenMP would wait for them forever.
bool OpenMpIsLost() noexcept;

}  // namespace manyhead::internal
