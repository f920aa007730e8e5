#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cache/head_table.h"

namespace manyhead {

/// What a cache holds of one sequence.
struct KvSequence {
  std::int64_t length = 0;
  /// The first position whose query still finds all that its heads' policies let it see.
  std::int64_t first_query = 0;
  bool stored = false;                 ///< by PrefixStore: no caller's
  std::unique_ptr<HeadTable[]> heads;  ///< of all layers, in order; null = the slot is unused
};

}  // namespace manyhead
