#include "runtime/platform/cpu_mask.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <exception>

namespace manyhead {
namespace {

constexpr int kWordBits = 8 * static_cast<int>(sizeof(unsigned long));
constexpr std::size_t kFirstWords = sizeof(cpu_set_t) / sizeof(unsigned long);
constexpr std::size_t kMostWords = (std::size_t{1} << 20) / kWordBits;

}  // namespace

bool CpuMask::Read() noexcept {
  try {
    if (words_.empty()) words_.resize(kFirstWords);
    for (;;) {
      // The words have the layout of a cpu_set_t; the call passes their number of bytes.
      if (sched_getaffinity(0, words_.size() * sizeof(unsigned long),
                            reinterpret_cast<cpu_set_t*>(words_.data())) == 0)
        return true;
      if (errno != EINVAL || words_.size() >= kMostWords) break;
      words_.resize(2 * words_.size());
    }
  } catch (const std::exception&) {  // no memory for a larger mask
  }
  std::fill(words_.begin(), words_.end(), 0);
  return false;
}

bool CpuMask::Apply() const noexcept {
  return sched_setaffinity(0, words_.size() * sizeof(unsigned long),
                           reinterpret_cast<const cpu_set_t*>(words_.data())) == 0;
}

int CpuMask::Count() const noexcept {
  int count = 0;
  for (const unsigned long word : words_) count += std::popcount(word);
  return count;
}

int CpuMask::size() const noexcept { return static_cast<int>(words_.size()) * kWordBits; }

bool CpuMask::Has(int cpu) const noexcept {
  return cpu >= 0 && cpu < size() &&
         (words_[static_cast<std::size_t>(cpu / kWordBits)] >> (cpu % kWordBits) & 1) != 0;
}

void CpuMask::Remove(int cpu) noexcept {
  if (cpu < 0 || cpu >= size()) return;
  words_[static_cast<std::size_t>(cpu / kWordBits)] &= ~(1UL << (cpu % kWordBits));
}

}  // namespace manyhead
