#include "runtime/platform/mapped_file.h"

#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "runtime/platform/file.h"
#include "runtime/platform/math.h"
#include "runtime/platform/memory.h"

namespace manyhead {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const Result<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() == 0) return FileError(path, "is empty");
  const auto size = static_cast<std::uint64_t>(file->size_bytes());
  if (size > std::numeric_limits<std::size_t>::max() / 2)
    return FileError(path, "size = " + std::to_string(size) + " bytes cannot be mapped");

  void* data =
      mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
  if (data == MAP_FAILED) return SystemError(path, "cannot map");
  return MappedFile({static_cast<const std::byte*>(data), static_cast<std::size_t>(size)});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::AdviseSequential() const noexcept {
  madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_SEQUENTIAL);
}

void MappedFile::AdviseWillNeed() const noexcept {
  madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_WILLNEED);
}

bool MappedFile::Contains(std::span<const std::byte> part) const noexcept {
  const auto end = reinterpret_cast<std::uintptr_t>(bytes_.data()) + bytes_.size();
  const auto first = reinterpret_cast<std::uintptr_t>(part.data());
  return first >= reinterpret_cast<std::uintptr_t>(bytes_.data()) && first <= end &&
         part.size() <= end - first;
}

void MappedFile::ReleasePages(std::span<const std::byte> part) const noexcept {
  // Only whole pages are released: madvise accepts no other start, and its end would reach into the
  // next page.
  if (!Contains(part)) return;
  const std::int64_t page = OsPageBytes();
  const std::int64_t first = part.data() - bytes_.data();
  const std::int64_t begin = RoundUp(first, page);
  const std::int64_t end = (first + static_cast<std::int64_t>(part.size())) / page * page;
  if (begin < end)
    madvise(const_cast<std::byte*>(bytes_.data() + begin), static_cast<std::size_t>(end - begin),
            MADV_DONTNEED);
}

}  // namespace manyhead
