#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"

/// The file of a snapshot, version 1 or 2. Numbers are little-endian, i64 unless stated otherwise.
///
///   header     "MHKVSNAP", u32 version, u32 0, bytes of the file, bytes of the metadata
///   metadata   fingerprint and user data, each its bytes after their number
///              page_size; number of layers, each num_kv_heads, head_dim, head_dim_v
///              each head of each layer: u8 k_type, v_type, policy kind, 0; sink, recent, budget;
///                in version 2 margin; number of its stored pages
///              number of sequences, each: length, first_query; each head of each layer:
///                number of gaps, each begin, end; for each page of its table the number of a
///                stored page of the head, -1 where the page lies in gaps; its score, if scored
///   zeros      up to a multiple of 64 bytes
///   pages      of each head, as kernels/kv_layout.h lays them out; zeros where no sequence holds a
///              token
///   checksum   u64, XXH3 of all bytes before
///
/// Version 2 is written where a policy has a margin, so that older programs read all other files.
/// Heads that are off have no pages, and a page that sequences share is stored once.

namespace manyhead {

struct SnapshotTable {
  std::vector<kernels::KvSpan> gaps;
  std::vector<std::int64_t> pages;
  std::vector<std::int64_t> scores;
};

struct SnapshotSequence {
  std::int64_t length = 0;
  std::int64_t first_query = 0;
  std::vector<SnapshotTable> heads;  ///< tables of all layers, in order
};

struct Snapshot {
  std::string fingerprint, user_data;
  KvCacheParams params;  ///< only layers, heads and page_size
  std::vector<std::int64_t> head_pages;
  std::vector<SnapshotSequence> sequences;
};

inline constexpr std::int64_t kSnapshotHeaderBytes = 32;
inline constexpr std::int64_t kSnapshotChecksumBytes = 8;

/// The positions of the parts in a snapshot's file.
struct SnapshotExtent {
  std::uint32_t version = 1;
  std::int64_t metadata_bytes = 0;
  std::int64_t file_bytes = 0;

  std::int64_t pages_begin() const noexcept {
    return (kSnapshotHeaderBytes + metadata_bytes + 63) & ~63;
  }
  std::int64_t pages_end() const noexcept { return file_bytes - kSnapshotChecksumBytes; }
};

/// Returns the header, the metadata, and zeros up to the pages.
std::vector<std::byte> EncodeSnapshot(const Snapshot& snapshot);

/// Reads the header of a file that has `file_bytes`.
/// Errors   kIoError or kUnsupported, naming the error.
Result<SnapshotExtent> DecodeSnapshotHeader(std::span<const std::byte> header,
                                            std::int64_t file_bytes);

/// Returns the part of `metadata`, in a file of `extent`, that a cache with the resolved
/// parameters `params` can restore; afterwards only the room for it remains to be checked.
/// Errors   kIoError where it contradicts itself, kInvalidArgument where `params`, `fingerprint`
///          or, unless `convert_types`, types differ; both name the place and both values.
Result<Snapshot> DecodeSnapshot(std::span<const std::byte> metadata, const SnapshotExtent& extent,
                                const KvCacheParams& params, const std::string& fingerprint,
                                bool convert_types);

}  // namespace manyhead
