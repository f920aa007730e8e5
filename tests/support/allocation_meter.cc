#include "tests/support/allocation_meter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_largest = 0;
std::atomic<std::size_t> g_count = 0;

void* Allocate(std::size_t size, std::size_t alignment) {
  ++g_count;
  std::size_t largest = g_largest;
  while (size > largest && !g_largest.compare_exchange_weak(largest, size)) {
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size == 0 ? 1 : size) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

// In a file of its own: where the compiler sees both bodies, it takes free() for a mistake.
void* operator new(std::size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
// The default one calls that above, but not where a sanitizer brings its own.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace manyhead::testing {

void ResetAllocationMeter() noexcept { g_largest = g_count = 0; }
std::size_t LargestAllocationBytes() noexcept { return g_largest; }
std::size_t NumAllocations() noexcept { return g_count; }

}  // namespace manyhead::testing
