#pragma once

#include <compare>
#include <cstdint>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// Identifies a query head.
struct HeadId {
  std::int64_t layer = 0;  ///< index of the layer, from 0
  std::int64_t head = 0;   ///< index of the head among the H heads of the layer, from 0

  /// Orders by layer, then by head.
  friend auto operator<=>(const HeadId&, const HeadId&) noexcept = default;
};

/// Identifies a KV head.
struct KvHeadId {
  std::int64_t layer = 0;    ///< index of the layer, from 0
  std::int64_t kv_head = 0;  ///< index of the KV head in the layer, from 0

  /// Orders by layer, then by head.
  friend auto operator<=>(const KvHeadId&, const KvHeadId&) noexcept = default;
};

}  // namespace manyhead
