#include "runtime/cache/snapshot_file.h"

#include <algorithm>
#include <bit>
#include <sstream>
#include <utility>

namespace manyhead {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

static_assert(std::endian::native == std::endian::little, "pages are saved as they are");

/// The checksum of all bytes but the last eight, and the one that these contain.
struct Checksums {
  std::uint64_t actual = 0, expected = 0;
};

Result<Checksums> ReadChecksums(const InputFile& file) {
  std::vector<std::byte> buffer(kBufferBytes);
  Checksum checksum;
  const std::int64_t end = file.size_bytes() - kSnapshotChecksumBytes;
  for (std::int64_t offset = 0; offset < end;) {
    const std::int64_t count = std::min(end - offset, static_cast<std::int64_t>(buffer.size()));
    const auto part = std::span(buffer).first(static_cast<std::size_t>(count));
    if (Status status = file.ReadAt(offset, part); !status.ok()) return status;
    checksum.Add(part);
    offset += count;
  }
  Checksums sums{checksum.value(), 0};
  Status status = file.ReadAt(end, std::as_writable_bytes(std::span(&sums.expected, 1)));
  if (!status.ok()) return status;
  return sums;
}

Status Named(const std::string& path, const Status& status) {
  return Status(status.code(), path + ": " + status.message());
}

}  // namespace

SnapshotWriter::SnapshotWriter(AtomicFile file) : file_(std::move(file)) {
  buffer_.reserve(kBufferBytes);
}

Status SnapshotWriter::Write(std::span<const std::byte> bytes) {
  checksum_.Add(bytes);
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kBufferBytes - buffer_.size()));
    buffer_.insert(buffer_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (buffer_.size() < kBufferBytes) continue;
    if (Status status = Flush(); !status.ok()) return status;
  }
  return Status();
}

Status SnapshotWriter::Flush() {
  Status status = file_.Write(buffer_);
  buffer_.clear();
  return status;
}

Status SnapshotWriter::Commit() {
  const std::uint64_t sum = checksum_.value();
  if (Status status = Write(std::as_bytes(std::span(&sum, 1))); !status.ok()) return status;
  if (Status status = Flush(); !status.ok()) return status;
  return file_.Commit();
}

Result<SnapshotFile> SnapshotFile::Open(const std::string& path, const KvCacheParams& params,
                                        const std::string& fingerprint, bool convert_types) {
  Result<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  constexpr std::int64_t kLeast = kSnapshotHeaderBytes + kSnapshotChecksumBytes;
  if (file->size_bytes() < kLeast)
    return FileError(path, "has " + std::to_string(file->size_bytes()) +
                               " bytes; a snapshot has at least " + std::to_string(kLeast));
  std::vector<std::byte> beginning(kSnapshotHeaderBytes);
  if (Status status = file->ReadAt(0, beginning); !status.ok()) return status;
  const Result<SnapshotExtent> extent = DecodeSnapshotHeader(beginning, file->size_bytes());
  if (!extent.ok()) return Named(path, extent.status());
  const Result<Checksums> sums = ReadChecksums(*file);
  if (!sums.ok()) return sums.status();
  if (sums->actual != sums->expected) {
    std::ostringstream message;
    message << "is damaged: its checksum is " << std::hex << sums->actual << "; it says "
            << sums->expected;
    return FileError(path, message.str());
  }
  beginning.resize(static_cast<std::size_t>(extent->pages_begin()));
  if (Status status = file->ReadAt(0, beginning); !status.ok()) return status;
  const auto metadata = std::span(beginning).subspan(
      kSnapshotHeaderBytes, static_cast<std::size_t>(extent->metadata_bytes));
  Result<Snapshot> snapshot = DecodeSnapshot(metadata, *extent, params, fingerprint, convert_types);
  if (!snapshot.ok()) return Named(path, snapshot.status());
  return SnapshotFile(*std::move(file), sums->expected, std::move(beginning), *std::move(snapshot));
}

SnapshotFile::SnapshotFile(InputFile file, std::uint64_t checksum, std::vector<std::byte> beginning,
                           Snapshot snapshot)
    : file_(std::move(file)),
      expected_(checksum),
      snapshot_(std::move(snapshot)),
      offset_(static_cast<std::int64_t>(beginning.size())),
      checksum_(std::make_unique<Checksum>()) {
  checksum_->Add(beginning);
}

Status SnapshotFile::ReadPage(std::span<std::byte> page) {
  if (Status status = file_.ReadAt(offset_, page); !status.ok()) return status;
  checksum_->Add(page);
  offset_ += static_cast<std::int64_t>(page.size());
  return Status();
}

Status SnapshotFile::CheckUnchanged() const {
  if (checksum_->value() == expected_) return Status();
  return FileError(file_.path(), "changed while it was read");
}

}  // namespace manyhead
