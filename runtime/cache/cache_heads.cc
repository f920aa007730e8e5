#include "runtime/cache/cache_heads.h"

#include <algorithm>
#include <utility>

namespace manyhead {

std::int64_t CacheHeads::Bytes(const KvCacheParams& params) noexcept {
  std::int64_t heads = 0;
  for (const KvLayerShape& shape : params.layers) heads += shape.num_kv_heads;
  return heads * static_cast<std::int64_t>(sizeof(KvHead)) +
         static_cast<std::int64_t>(params.layers.size() * sizeof(Layer));
}

CacheHeads::CacheHeads(KvCacheParams params) : params_(std::move(params)) {
  for (std::size_t l = 0; l < params_.layers.size(); ++l) {
    layers_.push_back({params_.layers[l].num_kv_heads, heads_.size()});
    for (const KvHeadParams& head_params : params_.heads[l]) {
      KvHead head = MakeKvHead(params_.layers[l], head_params, params_.page_size);
      const auto size = std::find(page_sizes_.begin(), page_sizes_.end(), head.layout.page_bytes);
      head.arena = static_cast<std::size_t>(size - page_sizes_.begin());
      if (size == page_sizes_.end()) page_sizes_.push_back(head.layout.page_bytes);
      page_row_bytes_ += KvRowBytes(head, params_.page_size);
      heads_.push_back(head);
    }
  }
}

void CacheHeads::TurnOff(std::int64_t layer, std::int64_t index) noexcept {
  KvHead& head = heads_[IndexOf(layer, index)];
  KvHeadParams& params =
      params_.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(index)];
  page_row_bytes_ -= KvRowBytes(head, params_.page_size);
  params.policy = KvPolicy::Off();
  const std::size_t arena = head.arena;
  head = MakeKvHead(params_.layers[static_cast<std::size_t>(layer)], params, params_.page_size);
  head.arena = arena;  // the index of no page size
}

}  // namespace manyhead
