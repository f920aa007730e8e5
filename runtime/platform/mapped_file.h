#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "manyhead/status.h"

namespace manyhead {

/// A regular file mapped read-only for as long as the object lives. Moving keeps the addresses.
///
/// The size is read once, when the file is opened. As with every mapping, a file that another
/// process shortens afterwards raises SIGBUS where it is read: replace model files by renaming, do
/// not overwrite them.
class MappedFile {
 public:
  /// Errors   kIoError naming `path` and why: missing, no permission, empty, or not a regular file
  ///          (a FIFO or device is refused without waiting for it).
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  /// Advise the kernel about the next accesses; neither changes any result.
  void AdviseSequential() const noexcept;
  void AdviseWillNeed() const noexcept;
  /// Returns true where all of `part` lies within bytes().
  bool Contains(std::span<const std::byte> part) const noexcept;
  /// Releases the pages of `part` of bytes() from this process's memory; reading maps them again.
  /// Does nothing where `part` lies elsewhere.
  void ReleasePages(std::span<const std::byte> part) const noexcept;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace manyhead
