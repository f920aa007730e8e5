#pragma once

#include <vector>

namespace manyhead {

/// The set of CPUs on which a thread may run, for any number of CPUs: a cpu_set_t ends at 1024, and
/// the system refuses to write its mask into a buffer that is too small for all possible CPUs.
class CpuMask {
 public:
  /// Reads the calling thread's mask; returns false, with an empty mask, when memory or the system
  /// call fails. A mask that was read before allocates nothing.
  bool Read() noexcept;
  /// Makes this the calling thread's mask.
  bool Apply() const noexcept;

  /// The number of CPUs in the mask.
  int Count() const noexcept;
  /// The upper bound of CPU numbers, which run from 0 to size() - 1.
  int size() const noexcept;
  bool Has(int cpu) const noexcept;
  void Remove(int cpu) noexcept;

 private:
  std::vector<unsigned long> words_;
};

}  // namespace manyhead
