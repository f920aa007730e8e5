#include "runtime/platform/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

/// Reads a file of /proc without allocating, so that reading the memory in use does not change it.
class ProcFile {
 public:
  explicit ProcFile(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t count;
    while (size_ < text_.size() &&
           (count = read(file, text_.data() + size_, text_.size() - size_)) > 0)
      size_ += static_cast<std::size_t>(count);
    close(file);
  }
  std::string_view text() const noexcept { return {text_.data(), size_}; }

 private:
  std::array<char, 8192> text_;
  std::size_t size_ = 0;
};

/// Returns the first number at or after `from`; -1 when there is none.
std::int64_t NumberAfter(std::string_view text, std::size_t from) noexcept {
  const std::size_t begin = text.find_first_of("0123456789", from);
  std::int64_t value = -1;
  if (begin != text.npos) std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

}  // namespace

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

std::optional<ReservedMemory> ReservedMemory::Reserve(std::int64_t bytes) noexcept {
  if (bytes <= 0) return ReservedMemory();
  void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return std::nullopt;
  // Huge pages would make up to 2 MiB resident for each page written, even where they are not
  // wanted.
  madvise(data, static_cast<std::size_t>(bytes), MADV_NOHUGEPAGE);
  return ReservedMemory(static_cast<std::byte*>(data), bytes);
}

void ReservedMemory::Release(std::int64_t begin_bytes, std::int64_t end_bytes) noexcept {
  const std::int64_t page = OsPageBytes();
  const std::int64_t begin = RoundUp(begin_bytes, page);
  const std::int64_t end = end_bytes / page * page;
  if (begin < end) madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

void ReservedMemory::PreferHugePages() noexcept {
  if (data_ != nullptr) madvise(data_, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
}

std::int64_t OsPageBytes() noexcept {
  static const std::int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

std::int64_t ResidentBytes() noexcept {
  const ProcFile file("/proc/self/statm");  // "size resident ...", in pages
  const std::size_t gap = file.text().find(' ');
  const std::int64_t pages = gap == file.text().npos ? -1 : NumberAfter(file.text(), gap);
  return pages < 0 ? -1 : pages * OsPageBytes();
}

std::int64_t PeakResidentBytes() noexcept {
  const ProcFile file("/proc/self/status");
  const std::size_t line = file.text().find("VmHWM:");  // in kB
  const std::int64_t kib = line == file.text().npos ? -1 : NumberAfter(file.text(), line);
  return kib < 0 ? -1 : kib * 1024;
}

}  // namespace manyhead
