#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/status.h"
#include "runtime/cache/cache_heads.h"
#include "runtime/cache/head_table.h"
#include "runtime/cache/page_pool.h"

namespace manyhead {

/// A head's table with more room.
struct GrownTable {
  std::size_t head = 0;
  std::int64_t pages_room = 0;  ///< 0: unchanged
  std::int64_t gaps_room = 0;
  HeadTable table;
};

/// The memory that an operation will allocate.
struct CacheChange {
  const char* function = nullptr;  ///< begins the message of an error
  std::int64_t page_bytes = 0;     ///< may be negative
  std::int64_t table_bytes = 0;
  std::vector<GrownTable> grown;  ///< sorted by head
};

/// The pages of all heads, and the account of all bytes under the cache's cap.
///
/// An operation that allocates runs in three parts: a CacheChange is planned, which leaves
/// everything as it is; Admit compares it with the cap and allocates all that it needs, or fails;
/// what follows cannot fail. One change is planned at a time.
class PageStore {
 public:
  /// Creates the store; `heads` must outlive it; `pool` must have their page sizes and the cache's
  /// cap.
  PageStore(const CacheHeads& heads, PagePool pool);
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Returns the bytes of the counts of pages.
  static std::int64_t CountBytes(std::int64_t heads) noexcept {
    return heads * static_cast<std::int64_t>(sizeof(std::int64_t));
  }

  const CacheHeads& heads() const noexcept { return heads_; }

  // These functions plan a change.
  CacheChange Begin(const char* function) noexcept;
  /// Adds `pages` more (or fewer) pages of a head.
  void PlanPages(CacheChange& change, std::size_t head, std::int64_t pages) noexcept;
  /// Adds room for this many entries to `table`, a table of a head.
  void PlanRoom(CacheChange& change, std::size_t head, const HeadTable& table, std::int64_t pages,
                std::int64_t gaps) const;
  /// Checks that the cap allows the change.
  /// Errors   kOutOfPages, naming both values.
  Status CheckRoom(const CacheChange& change) const;
  /// Checks the same, and allocates.
  Status Admit(CacheChange& change);
  /// Makes room in the pool for the pages of a change that CheckRoom allowed.
  /// Errors   throws bad_alloc, with nothing changed.
  void Prepare() { pool_.Prepare(added_pages_); }
  /// Moves the grown tables of a change to their places among `tables`, those of one sequence.
  void PutTables(CacheChange& change, HeadTable* tables) noexcept;

  // These functions allocate and release pages.
  std::byte* Allocate(std::size_t head) noexcept;
  void Release(std::size_t head, std::byte* page) noexcept;
  /// Returns a page that belongs to the sequence alone, with the contents of `page`, which may be
  /// null and is released.
  std::byte* AllocateCopy(std::size_t head, std::byte* page) noexcept;
  void Share(std::size_t head, std::byte* page) noexcept { pool_.Share(heads_[head].arena, page); }
  /// Returns true where one sequence alone holds the page; false for null.
  bool IsOwn(std::size_t head, const std::byte* page) const noexcept {
    return page != nullptr && !pool_.IsShared(heads_[head].arena, page);
  }
  /// Releases the pages of [first, last) that hold none of the first `length` tokens.
  void ReleaseEmpty(std::size_t head, HeadTable& table, std::int64_t first, std::int64_t last,
                    std::int64_t length) noexcept;
  /// Returns the memory of released pages to the OS.
  void ReturnToOs() noexcept { pool_.ReturnToOs(); }

  // These functions count bytes.
  /// Adds bytes of tables that other objects allocated, or freed.
  void AddTableBytes(std::int64_t bytes) noexcept { table_bytes_ += bytes; }
  std::int64_t table_bytes() const noexcept { return table_bytes_ + pool_.list_bytes(); }
  std::int64_t used_bytes() const noexcept { return pool_.used_bytes(); }
  /// Returns the bytes of the pages of a head that are in use.
  std::int64_t HeadBytes(std::size_t head) const noexcept {
    return head_pages_[head] * heads_[head].layout.page_bytes;
  }

 private:
  const CacheHeads& heads_;
  PagePool pool_;
  std::int64_t table_bytes_ = 0;           ///< bytes of all tables but the pool's lists
  std::vector<std::int64_t> head_pages_;   ///< [head] pages in use
  std::vector<std::int64_t> added_pages_;  ///< [arena] pages of the current change
};

}  // namespace manyhead
