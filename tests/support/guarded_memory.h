#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace manyhead::testing {

/// `size` numbers that end where readable memory ends: touching one more is a fault.
template <class T>
class GuardedMemory {
 public:
  explicit GuardedMemory(std::int64_t size = 0) : size_(size) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    const std::size_t readable = (bytes + page - 1) / page * page;
    mapped_ = readable + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<std::byte*>(base_);
    if (mprotect(begin + readable, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(begin + (readable - bytes));
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        mapped_(other.mapped_),
        data_(other.data_),
        size_(other.size_) {}
  GuardedMemory& operator=(GuardedMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GuardedMemory() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  T operator[](std::int64_t i) const { return data_[i]; }

 private:
  void* base_ = nullptr;
  std::size_t mapped_ = 0;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace manyhead::testing
