#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace manyhead {

/// Address space that costs memory only where it is touched: it reads as zeros, a first write makes
/// the operating system's page around it resident, and Release takes that memory away again.
class ReservedMemory {
 public:
  ReservedMemory() noexcept = default;
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;
  ~ReservedMemory();

  /// Nothing when the operating system refuses.
  static std::optional<ReservedMemory> Reserve(std::int64_t bytes) noexcept;

  /// Returns the memory of [begin_bytes, end_bytes) to the operating system, rounded inwards to its
  /// pages. What was there reads as zeros or as before.
  void Release(std::int64_t begin_bytes, std::int64_t end_bytes) noexcept;

  /// Asks for pages of 2 MiB, for memory that will all be touched: fewer addresses to look up.
  void PreferHugePages() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  ReservedMemory(std::byte* data, std::int64_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Bytes of a page of the operating system.
std::int64_t OsPageBytes() noexcept;

/// Bytes of this process in memory now, and the most there ever were; -1 where /proc tells neither.
std::int64_t ResidentBytes() noexcept;
std::int64_t PeakResidentBytes() noexcept;

}  // namespace manyhead
