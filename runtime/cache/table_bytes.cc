#include "runtime/cache/table_bytes.h"

#include "runtime/cache/cache_heads.h"
#include "runtime/cache/head_table.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/sequence_slots.h"

namespace manyhead {

std::int64_t FixedTableBytes(const KvCacheParams& params) noexcept {
  std::int64_t heads = 0;
  for (const KvLayerShape& shape : params.layers) heads += shape.num_kv_heads;
  return CacheHeads::Bytes(params) + PageStore::CountBytes(heads);
}

std::int64_t SlotTableBytes(std::int64_t sequences) noexcept {
  return SequenceSlots::Bytes(sequences);
}

std::int64_t SequenceTableBytes(std::int64_t heads) noexcept {
  return heads * static_cast<std::int64_t>(sizeof(HeadTable));
}

}  // namespace manyhead
