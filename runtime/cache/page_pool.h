#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/status.h"
#include "runtime/platform/memory.h"

namespace manyhead {

/// Pages of one size, packed side by side in an address range that could hold the whole pool.
///
/// Take gives the lowest free page, so pages stay dense and a bulk request is contiguous.
class PageArena {
 public:
  PageArena(std::int64_t page_bytes, ReservedMemory memory) noexcept
      : page_bytes_(page_bytes), memory_(std::move(memory)) {}

  std::int64_t page_bytes() const noexcept { return page_bytes_; }
  /// Makes the next `count` calls of Take possible. May throw bad_alloc, without effect.
  void Prepare(std::int64_t count);
  std::byte* Take() noexcept;
  /// The memory goes back to the operating system with the next Trim.
  void Give(std::byte* page) noexcept;
  void Trim() noexcept;

 private:
  bool IsFree(std::int64_t page) const noexcept {
    return (free_[page / kWordBits] >> (page % kWordBits) & 1) != 0;
  }
  void ReleaseRun(std::int64_t begin, std::int64_t end) noexcept;

  static constexpr std::int64_t kWordBits = 64;

  std::int64_t page_bytes_;
  ReservedMemory memory_;
  std::int64_t used_ = 0;
  std::int64_t first_free_word_ = 0;  ///< no word before it has a free page
  std::int64_t first_given_word_ = 0, last_given_word_ = -1;
  std::vector<std::uint64_t> free_;   ///< bit = page is free; pages beyond its end are free too
  std::vector<std::uint64_t> given_;  ///< bit = page was given since the last Trim
};

/// Pages of several sizes under one cap in bytes.
///
/// Each size has its own address range as large as the cap, and only bytes are shared between them:
/// memory freed in pages of one size serves any other at once, so there is no fragmentation between
/// sizes. Address space costs nothing; memory is what the used pages take.
class PagePool {
 public:
  /// `page_bytes` holds each size once, multiples of 64.
  static Result<PagePool> Create(std::int64_t capacity_bytes,
                                 const std::vector<std::int64_t>& page_bytes);

  std::int64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  std::int64_t used_bytes() const noexcept { return used_bytes_; }
  std::int64_t free_bytes() const noexcept { return capacity_bytes_ - used_bytes_; }

  /// To be called before Take, for `count` pages of arena `arena`; see PageArena::Prepare.
  void Prepare(std::size_t arena, std::int64_t count) { arenas_[arena].Prepare(count); }
  /// A page of any contents. Only within free_bytes() and what Prepare made possible.
  std::byte* Take(std::size_t arena) noexcept;
  void Give(std::size_t arena, std::byte* page) noexcept;
  /// Returns the memory of all pages given since the last call to the operating system.
  void Trim() noexcept;

 private:
  explicit PagePool(std::int64_t capacity_bytes) noexcept : capacity_bytes_(capacity_bytes) {}

  std::int64_t capacity_bytes_;
  std::int64_t used_bytes_ = 0;
  std::vector<PageArena> arenas_;
};

}  // namespace manyhead
