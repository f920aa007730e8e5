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

/// A snapshot's file on its way to the disk.
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

/// A snapshot's file that fits a cache: its checksum was right, and all but its pages is read.
class SnapshotFile {
 public:
  /// Errors   those of DecodeSnapshotHeader and DecodeSnapshot, and kIoError for a file that cannot
  ///          be read or whose checksum is wrong; all name `path`.
  static Result<SnapshotFile> Open(const std::string& path, const KvCacheParams& params,
                                   const std::string& fingerprint, bool convert_types);

  const Snapshot& snapshot() const noexcept { return snapshot_; }
  Snapshot& snapshot() noexcept { return snapshot_; }

  /// Reads the pages, one after the other.
  Status ReadPage(std::span<std::byte> page);
  /// After the last page: whether all that was read is what had the right checksum, since another
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
