#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cache/snapshot_format.h"
#include "runtime/platform/checksum.h"
#include "runtime/platform/file.h"

namespace manyhead {

/// Writes the file of a snapshot.
class SnapshotWriter {
 public:
  explicit SnapshotWriter(AtomicFile file);

  Status Write(std::span<const std::byte> bytes);
  /// Adds the checksum and gives the file its name.
  Status Commit();

 private:
  Status Flush();

  AtomicFile file_;
  Checksum checksum_;
  std::vector<std::byte> buffer_;
};

/// The file of a snapshot that fits a cache: its checksum is right, and everything but its pages
/// has been read.
class SnapshotFile {
 public:
  /// Errors   those of DecodeSnapshotHeader and DecodeSnapshot, and kIoError for a file that cannot
  ///          be read or whose checksum is wrong; all name `path`.
  static Result<SnapshotFile> Open(const std::string& path, const KvCacheParams& params,
                                   const std::string& fingerprint, bool convert_types);

  const Snapshot& snapshot() const noexcept { return snapshot_; }
  Snapshot& snapshot() noexcept { return snapshot_; }

  /// Reads the pages, one after another.
  Status ReadPage(std::span<std::byte> page);
  /// Checks, after the last page, that the bytes read have the right checksum, since another
  /// process may have written to the file meanwhile.
  Status CheckUnchanged() const;

 private:
  SnapshotFile(InputFile file, std::uint64_t checksum, std::vector<std::byte> beginning,
               Snapshot snapshot);

  InputFile file_;
  std::uint64_t expected_;
  Snapshot snapshot_;
  std::int64_t offset_;
  std::unique_ptr<Checksum> checksum_;
};

}  // namespace manyhead
