#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/platform/dcheck.h"

namespace manyhead {

/// A vector of trivial T that grows only on request, so that its memory can be planned, and
/// allocated before anything else changes.
template <class T>
class Table {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Table() noexcept = default;
  /// Errors   throws bad_alloc.
  explicit Table(std::int64_t room)
      : data_(room == 0 ? nullptr : new T[static_cast<std::size_t>(room)]), room_(room) {}
  Table(Table&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        room_(std::exchange(other.room_, 0)) {}
  Table& operator=(Table&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, 0);
    return *this;
  }

  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  T* begin() noexcept { return data_.get(); }
  const T* begin() const noexcept { return data_.get(); }
  T* end() noexcept { return data_.get() + size_; }
  const T* end() const noexcept { return data_.get() + size_; }
  T& operator[](std::int64_t i) noexcept { return data_[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const noexcept { return data_[static_cast<std::size_t>(i)]; }
  T& back() noexcept { return (*this)[size_ - 1]; }
  const T& back() const noexcept { return (*this)[size_ - 1]; }
  std::int64_t size() const noexcept { return size_; }
  std::int64_t room() const noexcept { return room_; }
  std::int64_t bytes() const noexcept { return room_ * static_cast<std::int64_t>(sizeof(T)); }

  /// Adds a value; there must be room.
  void Push(T value) noexcept {
    MANYHEAD_DCHECK(size_ < room_);
    (*this)[size_++] = value;
  }
  void Pop() noexcept { --size_; }
  /// Reduces the size; `size` must not exceed size().
  void Shorten(std::int64_t size) noexcept { size_ = size; }
  /// Replaces the entries [first, last) by one, or by none.
  void Replace(std::int64_t first, std::int64_t last, const T* value) noexcept {
    const std::int64_t added = value == nullptr ? 0 : 1;
    MANYHEAD_DCHECK(size_ - (last - first) + added <= room_);
    if (last < first + added) {
      std::copy_backward(begin() + last, end(), end() + added);
    } else {
      std::copy(begin() + last, end(), begin() + first + added);
    }
    size_ += added - (last - first);
    if (value != nullptr) (*this)[first] = *value;
  }
  /// Copies the entries of `from`, for which there must be room.
  void Assign(const Table& from) noexcept {
    MANYHEAD_DCHECK(from.size_ <= room_);
    std::copy(from.begin(), from.end(), begin());
    size_ = from.size_;
  }
  /// Moves the entries into the memory of `larger`.
  void MoveInto(Table&& larger) noexcept {
    larger.Assign(*this);
    *this = std::move(larger);
  }

 private:
  std::unique_ptr<T[]> data_;
  std::int64_t size_ = 0;
  std::int64_t room_ = 0;
};

/// Returns the room of a table for `size` entries: powers of two from `least` on, 0 for none.
inline std::int64_t RoomFor(std::int64_t size, std::int64_t least) noexcept {
  if (size == 0) return 0;
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max(size, least))));
}

}  // namespace manyhead
