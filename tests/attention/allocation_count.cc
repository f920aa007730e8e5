#include "tests/attention/allocation_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace manyhead::testing {
namespace {
std::atomic<std::int64_t> g_allocations{0};

void* Allocate(std::size_t bytes, std::size_t alignment) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = nullptr;
  if (posix_memalign(&p, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return p;
}
}  // namespace

std::int64_t AllocationCount() { return g_allocations.load(); }

}  // namespace manyhead::testing

void* operator new(std::size_t bytes) {
  return manyhead::testing::Allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return manyhead::testing::Allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
