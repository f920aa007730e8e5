#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "manyhead/status.h"

namespace manyhead {

/// Owns a file descriptor and closes it.
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

/// Returns kIoError with a message that names `path`.
Status FileError(const std::string& path, const std::string& what);
/// Returns the same with the message of errno.
Status SystemError(const std::string& path, const char* action);

/// A regular file that is open for reading.
///
/// Where another process shortens the file, reading returns an error; a mapping would raise a
/// signal.
class InputFile {
 public:
  /// Errors   kIoError naming `path` and why: missing, no permission, or not a regular file (a FIFO
  ///          or device is refused without waiting for it).
  static Result<InputFile> Open(const std::string& path);

  /// The size when the file was opened.
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return file_.get(); }
  /// Reads bytes from `offset` on until `bytes` is full.
  /// Errors   kIoError where the file ends too early.
  Status ReadAt(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  InputFile(std::string path, Descriptor file, std::int64_t size_bytes) noexcept
      : path_(std::move(path)), file_(std::move(file)), size_bytes_(size_bytes) {}

  std::string path_;
  Descriptor file_;
  std::int64_t size_bytes_;
};

/// A file that appears under its name only when it is complete: until then, and when the process or
/// the machine fails meanwhile, a file that was there stays. Until then the new file has no name;
/// where the file system does not support that, its name is "PATH.xxxxxxxx", shortened where the
/// name is long, and a killed process leaves it behind. It has the permissions of the file that it
/// replaces, or those of a new file. A symbolic link stays, and the file that it leads to is
/// replaced or created.
class AtomicFile {
 public:
  /// Errors   kIoError naming `path` and the reason: a name that the file system does not accept,
  ///          an object that exists and is no regular file, a folder in which no file can be
  ///          created.
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
  /// Writes everything to the disk, then gives the file its name. Nothing is written afterwards.
  Status Commit();
  /// Gives the file its name; the system writes it to the disk later.
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
  bool named_;  ///< `temporary_` exists
};

}  // namespace manyhead
