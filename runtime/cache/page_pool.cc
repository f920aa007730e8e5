#include "runtime/cache/page_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <utility>

#include "runtime/platform/dcheck.h"

namespace manyhead {

void PageArena::Prepare(std::int64_t count) {
  const std::int64_t needed = (used_ + count + kWordBits - 1) / kWordBits;
  const std::int64_t words = static_cast<std::int64_t>(free_.size());
  if (needed <= words) return;
  const std::size_t grown = static_cast<std::size_t>(std::max(needed, 2 * words));
  given_.resize(grown, 0);  // longer than free_ is harmless, should the next line throw
  free_.resize(grown, ~std::uint64_t{0});
}

std::byte* PageArena::Take() noexcept {
  while (free_[first_free_word_] == 0) ++first_free_word_;
  std::uint64_t& word = free_[first_free_word_];
  const std::int64_t page = first_free_word_ * kWordBits + std::countr_zero(word);
  word &= word - 1;
  ++used_;
  MANYHEAD_DCHECK((page + 1) * page_bytes_ <= memory_.bytes());
  return memory_.data() + page * page_bytes_;
}

void PageArena::Give(std::byte* page) noexcept {
  const std::int64_t index = (page - memory_.data()) / page_bytes_;
  const std::int64_t word = index / kWordBits;
  const std::uint64_t bit = std::uint64_t{1} << (index % kWordBits);
  MANYHEAD_DCHECK((free_[word] & bit) == 0);
  free_[word] |= bit;
  given_[word] |= bit;
  --used_;
  first_free_word_ = std::min(first_free_word_, word);
  first_given_word_ = last_given_word_ < 0 ? word : std::min(first_given_word_, word);
  last_given_word_ = std::max(last_given_word_, word);
}

void PageArena::Trim() noexcept {
  std::int64_t run_begin = 0, run_end = 0;  // a run of given pages not yet released
  for (std::int64_t w = first_given_word_; w <= last_given_word_; ++w) {
    for (std::uint64_t bits = std::exchange(given_[w], 0); bits != 0; bits &= bits - 1) {
      const std::int64_t page = w * kWordBits + std::countr_zero(bits);
      if (!IsFree(page)) continue;
      if (page != run_end) {
        ReleaseRun(run_begin, run_end);
        run_begin = page;
      }
      run_end = page + 1;
    }
  }
  ReleaseRun(run_begin, run_end);
  first_given_word_ = 0;
  last_given_word_ = -1;
}

void PageArena::ReleaseRun(std::int64_t begin, std::int64_t end) noexcept {
  if (begin == end) return;
  // Where pages end inside a page of the operating system, free neighbours decide whether it goes.
  const std::int64_t os_page = OsPageBytes();
  const std::int64_t pages = static_cast<std::int64_t>(free_.size()) * kWordBits;
  const std::int64_t first = begin * page_bytes_ / os_page * os_page / page_bytes_;
  const std::int64_t last =
      std::min(pages, ((end * page_bytes_ + os_page - 1) / os_page * os_page + page_bytes_ - 1) /
                          page_bytes_);
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
    if (!memory.has_value()) {
      std::ostringstream message;
      message << "KvCache::Create: capacity_bytes = " << capacity_bytes
              << "; the system refused address space of " << range << " bytes for each of "
              << page_bytes.size() << " page sizes";
      return Status(StatusCode::kUnsupported, message.str());
    }
    pool.arenas_.emplace_back(bytes, std::move(*memory));
  }
  return pool;
}

std::byte* PagePool::Take(std::size_t arena) noexcept {
  std::byte* page = arenas_[arena].Take();
  used_bytes_ += arenas_[arena].page_bytes();
  MANYHEAD_DCHECK(used_bytes_ <= capacity_bytes_);
#ifdef MANYHEAD_DCHECKS
  // All bits set is NaN in every type: a kernel that reads a row nobody wrote gives itself away.
  std::memset(page, 0xFF, static_cast<std::size_t>(arenas_[arena].page_bytes()));
#endif
  return page;
}

void PagePool::Give(std::size_t arena, std::byte* page) noexcept {
  arenas_[arena].Give(page);
  used_bytes_ -= arenas_[arena].page_bytes();
}

void PagePool::Trim() noexcept {
  for (PageArena& arena : arenas_) arena.Trim();
}

}  // namespace manyhead
