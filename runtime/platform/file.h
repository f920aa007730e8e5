#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "manyhead/status.h"

namespace manyhead {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// kIoError that names `path`.
Status FileError(const std::string& path, const std::string& what);
/// The same, with what errno says.
Status SystemError(const std::string& path, const char* action);

/// A regular file, open to be read.
///
/// Unlike a mapping, reading a file that another process cuts short is an error, not a signal.
class InputFile {
 public:
  /// Errors   kIoError naming `path` and why: missing, no permission, or not a regular file (a FIFO
  ///          or device is refused without waiting for it).
  static Result<InputFile> Open(const std::string& path);

  /// When it was opened.
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return file_.get(); }
  /// Fills `bytes` from `offset` on.
  /// Errors   kIoError where the file ends before.
  Status ReadAt(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  InputFile(std::string path, Descriptor file, std::int64_t size_bytes) noexcept
      : path_(std::move(path)), file_(std::move(file)), size_bytes_(size_bytes) {}

  std::string path_;
  Descriptor file_;
  std::int64_t size_bytes_;
};

/// A file that appears under its name when it is whole: until then, and when the process or the
/// machine dies meanwhile, that name keeps what it had. Until then it has no name of its own; where
/// the file system has no such files it is "PATH.xxxxxxxx", shortened where the name is long, which
/// a killed process leaves. It has the permissions of the file it replaces, those of a new file
/// otherwise. A symbolic link stays, and the file it leads to is replaced or made.
class AtomicFile {
 public:
  /// Errors   kIoError naming `path` and why: a name that the file system does not take, something
  ///          that is there and no regular file, a folder in which no file can be made.
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::move(other.temporary_)),
        file_(std::move(other.file_)),
        named_(std::exchange(other.named_, false)) {}
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  /// Errors   kIoError naming the path; also at the process's limit of file sizes, which raises no
  ///          signal here.
  Status Write(std::span<const std::byte> bytes);
  /// Brings everything to the disk, then under its name. Nothing is written afterwards.
  Status Commit();
  /// Brings everything under its name; the system writes it to the disk when it likes.
  Status CommitUnsynced();

 private:
  AtomicFile(std::string path, std::string temporary, Descriptor file, bool named) noexcept
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(std::move(file)),
        named_(named) {}

  Status SyncFolder() const;

  std::string path_;
  std::string temporary_;
  Descriptor file_;
  bool named_;  ///< `temporary_` is there
};

}  // namespace manyhead
