#pragma once

#include <shared_mutex>

#include "manyhead/kv_cache.h"

namespace manyhead::python {

/// A cache has one writer at a time while nobody reads; the lock makes that hold for Python
/// threads.
struct Cache {
  KvCache cache;
  mutable std::shared_mutex mutex;
};

}  // namespace manyhead::python
