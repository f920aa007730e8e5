#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/table.h"
#include "runtime/platform/math.h"

namespace manyhead {

/// One KV head of one layer, for all sequences.
struct KvHead {
  kernels::KvPageLayout layout;
  KvHeadParams params;
  std::size_t arena = 0;  ///< index of the arena with pages of its size
  /// A query at position i sees tokens below `sink` and those above i - recent.
  std::int64_t sink = 0;
  std::int64_t recent = kernels::kSeesAll;
  /// Tokens above length - kept stay stored: the policy's margin more than `recent`.
  std::int64_t kept = kernels::kSeesAll;

  bool off() const noexcept { return params.policy.kind == KvPolicyKind::kOff; }
  bool scored() const noexcept { return params.policy.kind == KvPolicyKind::kBudget; }
  std::int64_t PagesFor(std::int64_t tokens) const noexcept {
    return off() ? 0 : CeilDiv(tokens, layout.page_size);
  }
  /// Returns the number of page pointers that a table of this many pages has room for. Short
  /// sequences never grow their tables.
  std::int64_t RoomForPages(std::int64_t pages) const noexcept {
    constexpr std::int64_t kFirstPages = 64;
    return off() ? 0 : RoomFor(std::max<std::int64_t>(1, pages), kFirstPages);
  }
  static std::int64_t RoomForGaps(std::int64_t gaps) noexcept {
    constexpr std::int64_t kFirstGaps = 4;
    return RoomFor(gaps, kFirstGaps);
  }
  /// Returns the bytes of a new table for this many entries.
  std::int64_t NewTableBytes(std::int64_t pages, std::int64_t gaps) const noexcept {
    return TableBytes(RoomForPages(pages), RoomForGaps(gaps));
  }
  /// Returns the bytes of a table with such room.
  std::int64_t TableBytes(std::int64_t pages, std::int64_t gaps) const noexcept {
    return pages * static_cast<std::int64_t>(sizeof(std::byte*)) +
           (scored() ? pages * static_cast<std::int64_t>(sizeof(std::int64_t)) : 0) +
           gaps * static_cast<std::int64_t>(sizeof(kernels::KvSpan));
  }
};

/// Returns a head of a cache with pages of `page_size` tokens, without its arena. `params` must be
/// valid.
KvHead MakeKvHead(const KvLayerShape& shape, const KvHeadParams& params,
                  std::int64_t page_size) noexcept;

/// Returns the bytes that `page_size` tokens take in the head's pages; 0 where it is off.
std::int64_t KvRowBytes(const KvHead& head, std::int64_t page_size) noexcept;

}  // namespace manyhead
