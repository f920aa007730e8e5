#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "manyhead/status.h"
#include "runtime/cache/table.h"
#include "runtime/platform/math.h"
#include "runtime/platform/memory.h"

namespace manyhead {

/// Pages of one size, adjacent in an address range that could hold the whole pool, each with a
/// count of its holders.
///
/// Allocate returns the lowest free page, so pages stay dense and a bulk request is contiguous.
class PageArena {
 public:
  PageArena(std::int64_t page_bytes, ReservedMemory memory) noexcept
      : page_bytes_(page_bytes), memory_(std::move(memory)) {}

  std::int64_t page_bytes() const noexcept { return page_bytes_; }
  std::int64_t used_pages() const noexcept { return used_; }
  /// The bytes of its lists, now and after Grow(pages).
  std::int64_t list_bytes() const noexcept { return BytesOf(free_.size()); }
  static std::int64_t ListBytes(std::int64_t pages) noexcept { return BytesOf(WordsFor(pages)); }

  /// The lists for `pages` pages in use at once; an arena that has them can grow without failing.
  struct Lists {
    Table<std::uint64_t> free, released;
    Table<std::uint32_t> holders;
  };
  bool Needs(std::int64_t pages) const noexcept { return WordsFor(pages) > free_.size(); }
  /// Allocates the lists.
  /// Errors   throws bad_alloc.
  static Lists MakeLists(std::int64_t pages);
  void Grow(Lists&& lists) noexcept;

  /// Allocates a page with one holder. used_pages() must be less than the pages passed to Grow.
  std::byte* Allocate() noexcept;
  void Share(std::byte* page) noexcept { ++holders_[IndexOf(page)]; }
  bool IsShared(const std::byte* page) const noexcept { return holders_[IndexOf(page)] > 1; }
  /// Removes one holder; returns true if it was the last. ReturnToOs then returns the memory.
  bool Release(std::byte* page) noexcept;
  void ReturnToOs() noexcept;

 private:
  static constexpr std::int64_t kWordBits = 64;

  static std::int64_t WordsFor(std::int64_t pages) noexcept {
    return RoomFor(CeilDiv(pages, kWordBits), 1);
  }
  static std::int64_t BytesOf(std::int64_t words) noexcept {
    return words *
           static_cast<std::int64_t>(2 * sizeof(std::uint64_t) + kWordBits * sizeof(std::uint32_t));
  }
  std::int64_t IndexOf(const std::byte* page) const noexcept {
    return (page - memory_.data()) / page_bytes_;
  }
  bool IsFree(std::int64_t page) const noexcept {
    return (free_[page / kWordBits] >> (page % kWordBits) & 1) != 0;
  }
  void ReturnRun(std::int64_t begin, std::int64_t end) noexcept;

  std::int64_t page_bytes_;
  ReservedMemory memory_;
  std::int64_t used_ = 0;
  std::int64_t first_free_word_ = 0;  ///< no word before it has a free page
  std::int64_t first_released_word_ = 0, last_released_word_ = -1;
  Table<std::uint64_t> free_;      ///< bit = page is free; pages beyond its end are free too
  Table<std::uint64_t> released_;  ///< bit = page was released since the last ReturnToOs
  Table<std::uint32_t> holders_;   ///< [page in use] number of holders
};

/// Pages of several sizes under one cap in bytes.
///
/// Each size has its own address range as large as the cap, and all sizes share the bytes of the
/// cap: memory released in pages of one size serves any other at once, so there is no fragmentation
/// between sizes. Address space costs nothing; only used pages occupy memory.
class PagePool {
 public:
  /// Creates a pool; `page_bytes` must hold each size once, multiples of 64.
  static Result<PagePool> Create(std::int64_t capacity_bytes,
                                 const std::vector<std::int64_t>& page_bytes);

  std::int64_t used_bytes() const noexcept { return used_bytes_; }
  std::int64_t free_bytes() const noexcept { return capacity_bytes_ - used_bytes_; }
  std::int64_t list_bytes() const noexcept { return list_bytes_; }
  std::size_t num_arenas() const noexcept { return arenas_.size(); }

  /// Returns the bytes of the lists for `added[a]` more pages of arena a than are now in use.
  std::int64_t ListBytesWith(std::span<const std::int64_t> added) const noexcept;
  /// Makes the next `added[a]` calls of Allocate possible, beyond the pages in use now. May throw
  /// bad_alloc, without effect.
  void Prepare(std::span<const std::int64_t> added);
  /// Allocates a page of any contents, within the cap and the pages passed to Prepare.
  std::byte* Allocate(std::size_t arena) noexcept;
  void Share(std::size_t arena, std::byte* page) noexcept { arenas_[arena].Share(page); }
  bool IsShared(std::size_t arena, const std::byte* page) const noexcept {
    return arenas_[arena].IsShared(page);
  }
  /// Removes one holder; returns true if it was the last.
  bool Release(std::size_t arena, std::byte* page) noexcept;
  /// Returns the memory of all pages that were released since the last call to the OS.
  void ReturnToOs() noexcept;

 private:
  explicit PagePool(std::int64_t capacity_bytes) noexcept : capacity_bytes_(capacity_bytes) {}

  std::int64_t capacity_bytes_;
  std::int64_t used_bytes_ = 0;
  std::int64_t list_bytes_ = 0;
  std::vector<PageArena> arenas_;
};

}  // namespace manyhead
