#include "runtime/cache/page_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/platform/dcheck.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

namespace manyhead {

PageArena::Lists PageArena::MakeLists(std::int64_t pages) {
  const std::int64_t words = WordsFor(pages);
  return {Table<std::uint64_t>(words), Table<std::uint64_t>(words),
          Table<std::uint32_t>(words * kWordBits)};
}

void PageArena::Grow(Lists&& lists) noexcept {
  free_.MoveInto(std::move(lists.free));
  released_.MoveInto(std::move(lists.released));
  holders_.MoveInto(std::move(lists.holders));
  while (free_.size() < free_.room()) free_.Push(~std::uint64_t{0});
  while (released_.size() < released_.room()) released_.Push(0);
  while (holders_.size() < holders_.room()) holders_.Push(0);
}

std::byte* PageArena::Allocate() noexcept {
  while (free_[first_free_word_] == 0) ++first_free_word_;
  std::uint64_t& word = free_[first_free_word_];
  const std::int64_t page = first_free_word_ * kWordBits + std::countr_zero(word);
  word &= word - 1;
  holders_[page] = 1;
  ++used_;
  MANYHEAD_DCHECK((page + 1) * page_bytes_ <= memory_.bytes());
  return memory_.data() + page * page_bytes_;
}

bool PageArena::Release(std::byte* page) noexcept {
  const std::int64_t index = IndexOf(page);
  const std::int64_t word = index / kWordBits;
  const std::uint64_t bit = std::uint64_t{1} << (index % kWordBits);
  MANYHEAD_DCHECK((free_[word] & bit) == 0 && holders_[index] > 0);
  if (--holders_[index] > 0) return false;
  free_[word] |= bit;
  released_[word] |= bit;
  --used_;
  first_free_word_ = std::min(first_free_word_, word);
  first_released_word_ = last_released_word_ < 0 ? word : std::min(first_released_word_, word);
  last_released_word_ = std::max(last_released_word_, word);
  return true;
}

void PageArena::ReturnToOs() noexcept {
  std::int64_t run_begin = 0, run_end = 0;  // a run of released pages that still occupy memory
  for (std::int64_t w = first_released_word_; w <= last_released_word_; ++w) {
    for (std::uint64_t bits = std::exchange(released_[w], 0); bits != 0; bits &= bits - 1) {
      const std::int64_t page = w * kWordBits + std::countr_zero(bits);
      if (!IsFree(page)) continue;
      if (page != run_end) {
        ReturnRun(run_begin, run_end);
        run_begin = page;
      }
      run_end = page + 1;
    }
  }
  ReturnRun(run_begin, run_end);
  first_released_word_ = 0;
  last_released_word_ = -1;
}

void PageArena::ReturnRun(std::int64_t begin, std::int64_t end) noexcept {
  if (begin == end) return;
  // Where a page ends inside a page of the OS, that page is released only if its other parts are
  // free.
  const std::int64_t os_page = OsPageBytes();
  const std::int64_t pages = free_.size() * kWordBits;
  const std::int64_t first = begin * page_bytes_ / os_page * os_page / page_bytes_;
  const std::int64_t last =
      std::min(pages, CeilDiv(RoundUp(end * page_bytes_, os_page), page_bytes_));
  while (begin > first && IsFree(begin - 1)) --begin;
  while (end < last && IsFree(end)) ++end;
  memory_.Release(begin * page_bytes_, std::min(end * page_bytes_, memory_.bytes()));
}

Result<PagePool> PagePool::Create(std::int64_t capacity_bytes,
                                  const std::vector<std::int64_t>& page_bytes) {
  PagePool pool(capacity_bytes);
  for (const std::int64_t bytes : page_bytes) {
    const std::int64_t range = capacity_bytes / bytes * bytes;
    std::optional<ReservedMemory> memory = ReservedMemory::Reserve(range);
    if (!memory.has_value())
      return Unsupported("KvCache::Create", "capacity_bytes = ", capacity_bytes,
                         "; the system refused address space of ", range, " bytes for each of ",
                         page_bytes.size(), " page sizes");
    pool.arenas_.emplace_back(bytes, std::move(*memory));
  }
  return pool;
}

std::int64_t PagePool::ListBytesWith(std::span<const std::int64_t> added) const noexcept {
  std::int64_t bytes = 0;
  for (std::size_t a = 0; a < arenas_.size(); ++a)
    bytes +=
        std::max(arenas_[a].list_bytes(), PageArena::ListBytes(arenas_[a].used_pages() + added[a]));
  return bytes;
}

void PagePool::Prepare(std::span<const std::int64_t> added) {
  const std::int64_t bytes = ListBytesWith(added);
  if (bytes == list_bytes_) return;
  std::vector<PageArena::Lists> lists(arenas_.size());
  for (std::size_t a = 0; a < arenas_.size(); ++a)
    if (const std::int64_t pages = arenas_[a].used_pages() + added[a]; arenas_[a].Needs(pages))
      lists[a] = PageArena::MakeLists(pages);
  for (std::size_t a = 0; a < arenas_.size(); ++a)
    if (lists[a].free.room() > 0) arenas_[a].Grow(std::move(lists[a]));
  list_bytes_ = bytes;
}

std::byte* PagePool::Allocate(std::size_t arena) noexcept {
  std::byte* page = arenas_[arena].Allocate();
  used_bytes_ += arenas_[arena].page_bytes();
  MANYHEAD_DCHECK(used_bytes_ <= capacity_bytes_);
#ifdef MANYHEAD_DCHECKS
  // All bits set is NaN in every type, so a kernel that reads a row which was never written is
  // noticed.
  std::memset(page, 0xFF, static_cast<std::size_t>(arenas_[arena].page_bytes()));
#endif
  return page;
}

bool PagePool::Release(std::size_t arena, std::byte* page) noexcept {
  const bool freed = arenas_[arena].Release(page);
  if (freed) used_bytes_ -= arenas_[arena].page_bytes();
  return freed;
}

void PagePool::ReturnToOs() noexcept {
  for (PageArena& arena : arenas_) arena.ReturnToOs();
}

}  // namespace manyhead
