#pragma once

#include <cstdint>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_cache_impl.h"

/// Validates the arguments of a cache's methods. `function` begins the message of an error, and
/// every message names both values; nothing changes.

namespace manyhead {

/// Returns an error for an id that names no sequence of a caller.
Status CheckSequence(const KvCache::Impl& impl, const char* function, SequenceId id);

/// Returns an error for an `index` outside 0..end - 1; `name` names it.
Status CheckIndex(const char* function, const char* name, std::int64_t index, std::int64_t end);

/// Returns an error for a layer that the cache does not have.
Status CheckLayer(const KvCache::Impl& impl, const char* function, std::int64_t layer);

/// Returns an error for an invalid sequence, or a length beyond its own.
Status CheckLength(const KvCache::Impl& impl, const char* function, SequenceId id,
                   std::int64_t length);

/// Returns an error for positions [begin, end) that are no range in 0..length.
Status CheckTokens(const char* function, std::int64_t begin, std::int64_t end, std::int64_t length);

/// The arguments of Write, with the strides filled in.
struct WriteArguments {
  std::int64_t layer = 0;
  std::int64_t position = 0;
  std::int64_t count = 0;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
};
/// Returns the arguments of Write with the strides that 0 stands for, if they are in range.
Result<WriteArguments> CheckWrite(const KvCache::Impl& impl, SequenceId id,
                                  const WriteArguments& arguments);

/// Returns an error for a token that the head does not hold, or that is out of range.
Status CheckRead(const KvCache::Impl& impl, SequenceId id, std::int64_t layer, std::int64_t head,
                 std::int64_t position);

}  // namespace manyhead
