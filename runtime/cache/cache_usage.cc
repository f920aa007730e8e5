#include "runtime/cache/cache_usage.h"

#include <algorithm>
#include <cstddef>

#include "runtime/cache/table_bytes.h"

namespace manyhead {

KvUsage UsageOf(const PageStore& pages) {
  const CacheHeads& heads = pages.heads();
  KvUsage usage;
  usage.capacity_bytes = heads.params().capacity_bytes;
  usage.used_bytes = pages.used_bytes();
  usage.table_bytes = pages.table_bytes();
  for (std::int64_t layer = 0; layer < heads.num_layers(); ++layer) {
    usage.head_bytes.emplace_back();
    for (std::int64_t h = 0; h < heads.num_kv_heads(layer); ++h)
      usage.head_bytes.back().push_back(pages.HeadBytes(heads.IndexOf(layer, h)));
  }
  return usage;
}

KvUsage UsageOf(const PageStore& pages, const KvSequence& sequence) {
  const CacheHeads& heads = pages.heads();
  KvUsage usage;
  usage.capacity_bytes = heads.params().capacity_bytes;
  usage.table_bytes = SequenceTableBytes(static_cast<std::int64_t>(heads.size()));
  for (std::size_t head = 0; head < heads.size(); ++head)
    usage.table_bytes += sequence.heads[head].bytes();
  for (const auto& layer : HeadUsageOf(heads, sequence)) {
    usage.head_bytes.emplace_back();
    for (const KvHeadUsage& head : layer) {
      usage.head_bytes.back().push_back(head.pages * head.page_bytes);
      usage.used_bytes += head.pages * head.page_bytes;
    }
  }
  return usage;
}

std::vector<std::vector<KvHeadUsage>> HeadUsageOf(const CacheHeads& heads,
                                                  const KvSequence& sequence) {
  std::vector<std::vector<KvHeadUsage>> usage(static_cast<std::size_t>(heads.num_layers()));
  for (std::int64_t layer = 0; layer < heads.num_layers(); ++layer)
    for (std::int64_t h = 0; h < heads.num_kv_heads(layer); ++h) {
      const std::size_t head = heads.IndexOf(layer, h);
      const HeadTable& table = sequence.heads[head];
      KvHeadUsage entry;
      entry.page_bytes = heads[head].layout.page_bytes;
      entry.tokens = heads[head].off() ? 0 : table.HeldIn(0, sequence.length);
      entry.pages = std::count_if(table.pages.begin(), table.pages.end(),
                                  [](const std::byte* page) { return page != nullptr; });
      usage[static_cast<std::size_t>(layer)].push_back(entry);
    }
  return usage;
}

}  // namespace manyhead
