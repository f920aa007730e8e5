#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace manyhead {

/// Address space that occupies memory only where it is written: it reads as zeros, the first write
/// makes the operating system's page around it resident, and Release returns that memory to the OS.
class ReservedMemory {
 public:
  ReservedMemory() noexcept = default;
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;
  ~ReservedMemory();

  /// Returns nothing when the operating system refuses.
  static std::optional<ReservedMemory> Reserve(std::int64_t bytes) noexcept;

  /// Returns the memory of [begin_bytes, end_bytes) to the OS, rounded inwards to its pages. The
  /// range then reads as zeros or as before.
  void Release(std::int64_t begin_bytes, std::int64_t end_bytes) noexcept;

  /// Asks for pages of 2 MiB, for memory that will be written completely: the CPU then translates
  /// fewer addresses.
  void PreferHugePages() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  ReservedMemory(std::byte* data, std::int64_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Returns the bytes of a page of the operating system.
std::int64_t OsPageBytes() noexcept;

/// Return the bytes of this process in memory now and at most so far; -1 where /proc gives no
/// answer.
std::int64_t ResidentBytes() noexcept;
std::int64_t PeakResidentBytes() noexcept;

}  // namespace manyhead
