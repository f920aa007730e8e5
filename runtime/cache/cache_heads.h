#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_head.h"

namespace manyhead {

/// The KV heads of all layers, in order, and the parameters that they follow from.
class CacheHeads {
 public:
  /// Makes the list; `params` must be resolved and in range.
  explicit CacheHeads(KvCacheParams params);

  /// Returns the bytes of a cache's lists of heads and layers.
  static std::int64_t Bytes(const KvCacheParams& params) noexcept;

  const KvCacheParams& params() const noexcept { return params_; }
  std::size_t size() const noexcept { return heads_.size(); }
  const KvHead& operator[](std::size_t head) const noexcept { return heads_[head]; }
  auto begin() const noexcept { return heads_.begin(); }
  auto end() const noexcept { return heads_.end(); }

  std::int64_t num_layers() const noexcept { return std::ssize(layers_); }
  std::int64_t num_kv_heads(std::int64_t layer) const noexcept {
    return layers_[static_cast<std::size_t>(layer)].num_kv_heads;
  }
  /// Returns the index of a head among those of all layers.
  std::size_t IndexOf(std::int64_t layer, std::int64_t head) const noexcept {
    return layers_[static_cast<std::size_t>(layer)].first_head + static_cast<std::size_t>(head);
  }

  /// Returns the bytes of a page of each size; KvHead::arena is an index of this list.
  const std::vector<std::int64_t>& page_sizes() const noexcept { return page_sizes_; }
  /// Returns the bytes that page_size tokens take on every layer and head.
  std::int64_t page_row_bytes() const noexcept { return page_row_bytes_; }

  /// Sets the policy of a head to `off`.
  void TurnOff(std::int64_t layer, std::int64_t head) noexcept;

 private:
  struct Layer {
    std::int64_t num_kv_heads = 0;
    std::size_t first_head = 0;  ///< index of its head 0 among the heads of all layers
  };

  KvCacheParams params_;
  std::vector<Layer> layers_;
  std::vector<KvHead> heads_;
  std::vector<std::int64_t> page_sizes_;
  std::int64_t page_row_bytes_ = 0;
};

}  // namespace manyhead
