#include "runtime/platform/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "runtime/platform/memory.h"

namespace manyhead {
namespace {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

Status FileError(const std::string& path, const std::string& what) {
  return {StatusCode::kIoError, path + ": " + what};
}

Status SystemError(const std::string& path, const char* action) {
  // Not strerror: that is not safe in threads.
  return FileError(path, std::string(action) + ": " + std::generic_category().message(errno));
}

const char* KindOf(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "of another kind";
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    return FileError(path.substr(0, path.find('\0')), "the file name contains a NUL byte");
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return SystemError(path, "cannot open");
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return SystemError(path, "cannot read the size");
  if (!S_ISREG(info.st_mode))
    return FileError(path, std::string("is ") + KindOf(info.st_mode) + "; expected a regular file");
  if (info.st_size == 0) return FileError(path, "is empty");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > std::numeric_limits<std::size_t>::max() / 2)
    return FileError(path, "size = " + std::to_string(size) + " bytes cannot be mapped");

  void* data = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file.get(), 0);
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

void MappedFile::Forget(std::span<const std::byte> part) const noexcept {
  // Whole pages only: madvise takes no other start, and its end would reach into the next page.
  const std::int64_t page = OsPageBytes();
  const std::int64_t first = part.data() - bytes_.data();
  const std::int64_t begin = (first + page - 1) / page * page;
  const std::int64_t end = (first + static_cast<std::int64_t>(part.size())) / page * page;
  if (begin < end)
    madvise(const_cast<std::byte*>(bytes_.data() + begin), static_cast<std::size_t>(end - begin),
            MADV_DONTNEED);
}

}  // namespace manyhead
