#include "runtime/platform/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace manyhead {
namespace {

const char* KindOf(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "of another kind";
}

Status CheckRegular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return Status();
  return FileError(path, std::string("is ") + KindOf(mode) + "; expected a regular file");
}

Status CheckName(const std::string& path) {
  const std::size_t nul = path.find('\0');
  if (nul == std::string::npos) return Status();
  return FileError(path.substr(0, nul), "the file name contains a NUL byte");
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Status FileError(const std::string& path, const std::string& what) {
  return {StatusCode::kIoError, path + ": " + what};
}

Status SystemError(const std::string& path, const char* action) {
  // Not strerror: that is not safe in threads.
  return FileError(path, std::string(action) + ": " + std::generic_category().message(errno));
}

Result<InputFile> InputFile::Open(const std::string& path) {
  if (Status status = CheckName(path); !status.ok()) return status;
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return SystemError(path, "cannot open");
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return SystemError(path, "cannot read the size");
  if (Status status = CheckRegular(path, info.st_mode); !status.ok()) return status;
  return InputFile(path, std::move(file), std::int64_t{info.st_size});
}

Status InputFile::ReadAt(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(file_.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path_, "cannot read");
    if (got == 0)
      return FileError(path_, "ends after " + std::to_string(offset) + " of " +
                                  std::to_string(size_bytes_) + " bytes");
    offset += got;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Status();
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  if (Status status = CheckName(path); !status.ok()) return status;
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0)
    if (Status status = CheckRegular(path, info.st_mode); !status.ok()) return status;
  std::string name = path, temporary = path + ".XXXXXX";  // nothing may throw once it is there
  Descriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return SystemError(path, "cannot create");
  return AtomicFile(std::move(name), std::move(temporary), std::move(file));
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(file_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return Status();
}

Status AtomicFile::Commit() {
  if (fsync(file_.get()) != 0) return SystemError(path_, "cannot write to the disk");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    return SystemError(path_, "cannot rename");
  temporary_.clear();
  // The name is an entry of its directory, which has to reach the disk as well.
  std::string folder = std::filesystem::path(path_).parent_path().string();
  if (folder.empty()) folder = ".";
  const Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return SystemError(folder, "cannot open");
  // Some file systems cannot, and have nothing to bring.
  if (fsync(directory.get()) != 0 && errno != EINVAL)
    return SystemError(folder, "cannot write to the disk");
  return Status();
}

}  // namespace manyhead
