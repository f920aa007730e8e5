#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "runtime/platform/math.h"

namespace manyhead {

/// A fixed array of trivial T that begins on a cache line; its elements are not initialised.
template <class T>
class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  AlignedBuffer() = default;
  /// Errors   throws bad_alloc.
  explicit AlignedBuffer(std::int64_t size) : size_(size) {
    if (size < 0 || static_cast<std::uint64_t>(size) > (SIZE_MAX - kAlignment) / sizeof(T))
      throw std::bad_alloc();
    const std::size_t bytes = RoundUp(static_cast<std::size_t>(size) * sizeof(T), kAlignment);
    data_.reset(static_cast<T*>(std::aligned_alloc(kAlignment, bytes == 0 ? kAlignment : bytes)));
    if (!data_) throw std::bad_alloc();
  }

  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  T& operator[](std::int64_t i) noexcept { return data_.get()[i]; }
  const T& operator[](std::int64_t i) const noexcept { return data_.get()[i]; }
  std::int64_t size() const noexcept { return size_; }
  std::int64_t size_bytes() const noexcept { return size_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  struct Free {
    void operator()(T* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace manyhead
