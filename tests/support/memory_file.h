#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace manyhead::testing {

/// A file without a place on disk, for tests that write thousands of variants of one.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("test", MFD_CLOEXEC)) {}
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(fd_); }

  /// Replaces the contents, which must not be mapped; returns whether that worked.
  bool Set(std::string_view bytes) const {
    return ftruncate(fd_, static_cast<off_t>(bytes.size())) == 0 &&
           pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace manyhead::testing
