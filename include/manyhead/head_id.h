#pragma once

#include <compare>
#include <cstdint>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// A query head.
struct HeadId {
  std::int64_t layer = 0;  ///< from 0
  std::int64_t head = 0;   ///< of the layer's H, from 0

  /// By layer, then by head.
  friend auto operator<=>(const HeadId&, const HeadId&) noexcept = default;
};

/// A KV head.
struct KvHeadId {
  std::int64_t layer = 0;    ///< from 0
  std::int64_t kv_head = 0;  ///< of the layer, from 0

  /// By layer, then by head.
  friend auto operator<=>(const KvHeadId&, const KvHeadId&) noexcept = default;
};

}  // namespace manyhead
