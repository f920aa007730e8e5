#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cache/head_table.h"

namespace manyhead {

/// The state of one sequence in a cache.
struct KvSequence {
  std::int64_t length = 0;
  /// The first position whose query still finds all tokens that its heads' policies let it see.
  std::int64_t first_query = 0;
  bool stored = false;                 ///< it belongs to PrefixStore, not to a caller
  std::unique_ptr<HeadTable[]> heads;  ///< tables of all layers, in order; null = an unused slot
};

}  // namespace manyhead
