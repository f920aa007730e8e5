#include "runtime/cache/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/platform/memory.h"

namespace manyhead {
namespace {

/// Whether the operating system's page that holds `address` is in memory.
bool IsResident(const std::byte* address) {
  const std::uintptr_t page = static_cast<std::uintptr_t>(OsPageBytes());
  unsigned char flag = 0;
  void* base = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) / page * page);
  EXPECT_EQ(mincore(base, page, &flag), 0);
  return (flag & 1) != 0;
}

void Fill(std::byte* page, std::int64_t bytes) {
  std::memset(page, 1, static_cast<std::size_t>(bytes));
}

void Prepare(PagePool& pool, std::size_t arena, std::int64_t count) {
  std::vector<std::int64_t> added(pool.num_arenas(), 0);
  added[arena] = count;
  pool.Prepare(added);
}

std::byte* TakeFilled(PagePool& pool, std::size_t arena, std::int64_t bytes) {
  Prepare(pool, arena, 1);
  std::byte* page = pool.Allocate(arena);
  Fill(page, bytes);
  return page;
}

TEST(PagePool, BulkRequestIsContiguousAndGapsAreFilledFirst) {
  PagePool pool = *PagePool::Create(1 << 20, {64});
  Prepare(pool, 0, 200);
  std::vector<std::byte*> pages;
  for (int i = 0; i < 200; ++i) pages.push_back(pool.Allocate(0));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(pages[i], pages[0] + 64 * i);
  EXPECT_EQ(pool.used_bytes(), 200 * 64);
  for (int i : {70, 3, 150}) pool.Release(0, pages[i]);
  pool.ReturnToOs();
  Prepare(pool, 0, 4);
  for (int i : {3, 70, 150}) EXPECT_EQ(pool.Allocate(0), pages[i]);
  EXPECT_EQ(pool.Allocate(0), pages[0] + 64 * 200);
}

TEST(PagePool, BytesFreedByOneSizeServeAnother) {
  constexpr std::int64_t kSmall = 576, kLarge = 8 * 4096, kCapacity = 64 * kLarge;
  PagePool pool = *PagePool::Create(kCapacity, {kSmall, kLarge});
  std::vector<std::byte*> small;
  while (pool.free_bytes() >= kSmall) small.push_back(TakeFilled(pool, 0, kSmall));
  EXPECT_EQ(static_cast<std::int64_t>(small.size()), kCapacity / kSmall);
  // Every second one stays: the worst gaps for a larger size.
  for (std::size_t i = 0; i < small.size(); i += 2) pool.Release(0, small[i]);
  pool.ReturnToOs();
  std::int64_t large = 0;
  for (; pool.free_bytes() >= kLarge; ++large) TakeFilled(pool, 1, kLarge);
  EXPECT_EQ(large, 32);
  for (std::size_t i = 1; i < small.size(); i += 2) EXPECT_EQ(small[i][kSmall - 1], std::byte{1});
}

TEST(PagePool, MemoryComesWithTheFirstWriteAndGoesWithTrim) {
  const std::int64_t os_page = OsPageBytes();
  const std::int64_t bytes = 4 * os_page;
  PagePool pool = *PagePool::Create(100 * bytes, {bytes});
  std::vector<std::byte*> pages;
  for (int i = 0; i < 10; ++i) pages.push_back(TakeFilled(pool, 0, bytes));
  EXPECT_TRUE(IsResident(pages[9] + bytes - 1));
  EXPECT_FALSE(IsResident(pages[9] + bytes));
  for (int i : {2, 3, 4, 9}) pool.Release(0, pages[i]);
  EXPECT_TRUE(IsResident(pages[3]))
      << "a page may be taken again before ReturnToOs without a fault";
  pool.ReturnToOs();
  for (int i = 0; i < 10; ++i) {
    const bool freed = (i >= 2 && i <= 4) || i == 9;
    for (std::int64_t at = 0; at < bytes; at += os_page)
      EXPECT_EQ(IsResident(pages[i] + at), !freed) << "page " << i << " byte " << at;
  }
}

TEST(PagePool, PagesTakenAgainBeforeTrimKeepTheirMemory) {
  const std::int64_t bytes = OsPageBytes();
  PagePool pool = *PagePool::Create(100 * bytes, {bytes});
  std::byte* first = TakeFilled(pool, 0, bytes);
  std::byte* second = TakeFilled(pool, 0, bytes);
  pool.Release(0, second);
  pool.Release(0, first);
  EXPECT_EQ(TakeFilled(pool, 0, bytes), first);
  pool.ReturnToOs();
  EXPECT_EQ(first[0], std::byte{1});
  EXPECT_TRUE(IsResident(first));
  EXPECT_FALSE(IsResident(second));
}

// Sizes that share pages of the operating system: one goes when its last user goes, and not before.
TEST(PagePool, SmallPagesGiveMemoryBackTogether) {
  for (const std::int64_t bytes : {64, 576, 4096, 5184, 20480 + 64}) {
    PagePool pool = *PagePool::Create(2000 * bytes, {bytes});
    std::vector<std::byte*> used;
    std::mt19937 random(11);
    for (int step = 0; step < 200; ++step) {
      for (std::uint64_t n = random() % 20; n > 0; --n)
        if (pool.free_bytes() >= bytes) used.push_back(TakeFilled(pool, 0, bytes));
      std::shuffle(used.begin(), used.end(), random);
      for (std::uint64_t n = random() % 22; n > 0 && !used.empty(); --n) {
        pool.Release(0, used.back());
        used.pop_back();
      }
      pool.ReturnToOs();
      for (const std::byte* page : used)
        for (std::int64_t at : {std::int64_t{0}, bytes / 2, bytes - 1})
          ASSERT_EQ(page[at], std::byte{1}) << bytes << " bytes, step " << step;
    }
    std::byte* lowest = nullptr;
    for (std::byte* page : used) {
      lowest = lowest == nullptr ? page : std::min(lowest, page);
      pool.Release(0, page);
    }
    pool.ReturnToOs();
    EXPECT_EQ(pool.used_bytes(), 0);
    if (lowest != nullptr) {
      EXPECT_FALSE(IsResident(lowest));
    }
  }
}

TEST(PagePool, RefusedAddressSpaceIsAnError) {
  const Result<PagePool> pool = PagePool::Create(std::int64_t{1} << 62, {4096});
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(pool.status().message().find("capacity_bytes = 4611686018427387904"),
            std::string::npos);
}

TEST(Memory, ReadersFollowWhatIsTouched) {
  constexpr std::int64_t kBytes = 64 << 20, kSlack = 4 << 20;
  const std::int64_t before = ResidentBytes();
  ASSERT_GT(before, 0);
  {
    ReservedMemory memory = *ReservedMemory::Reserve(kBytes);
    EXPECT_LE(std::abs(ResidentBytes() - before), kSlack);
    Fill(memory.data(), kBytes);
    EXPECT_LE(std::abs(ResidentBytes() - (before + kBytes)), kSlack);
    EXPECT_GE(PeakResidentBytes(), before + kBytes - kSlack);
    memory.Release(1, kBytes / 2 + 1);
    EXPECT_LE(std::abs(ResidentBytes() - (before + kBytes / 2)), kSlack);
    EXPECT_EQ(memory.data()[0], std::byte{1}) << "the first page is only partly released";
    EXPECT_EQ(memory.data()[OsPageBytes()], std::byte{0});
    EXPECT_EQ(memory.data()[kBytes / 2], std::byte{1});
  }
  EXPECT_LE(std::abs(ResidentBytes() - before), kSlack);
  EXPECT_GE(PeakResidentBytes(), before + kBytes - kSlack);
}

}  // namespace
}  // namespace manyhead
