#pragma once

#include <shared_mutex>

#include "manyhead/kv_cache.h"

namespace manyhead::python {

/// A cache with a lock: the library allows one writer at a time while no thread reads, and the lock
/// ensures this for Python threads.
struct Cache {
  KvCache cache;
  mutable std::shared_mutex mutex;
};

}  // namespace manyhead::python
