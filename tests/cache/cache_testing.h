#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"

namespace manyhead {

/// An element of token `serial`: whole numbers up to 125, exact in every KV type.
inline float KElement(std::int64_t serial, std::int64_t layer, std::int64_t head, std::int64_t d) {
  return static_cast<float>((serial * 37 + layer * 101 + head * 59 + d * 7) % 251 - 125);
}
inline float VElement(std::int64_t serial, std::int64_t layer, std::int64_t head, std::int64_t d) {
  return static_cast<float>((serial * 53 + layer * 11 + head * 83 + d * 29 + 1) % 251 - 125);
}

/// Rows [count, K, D] and [count, K, Dv] of the tokens `serials`, `pad` elements of `filler` after
/// each.
struct Rows {
  std::vector<float> k, v;
  std::int64_t k_stride, v_stride;
};

inline Rows MakeRows(const KvLayerShape& shape, std::int64_t layer,
                     const std::vector<std::int64_t>& serials, std::int64_t pad = 0,
                     float filler = 0) {
  Rows rows;
  rows.k_stride = shape.num_kv_heads * shape.head_dim + pad;
  rows.v_stride = shape.num_kv_heads * shape.head_dim_v + pad;
  for (const std::int64_t serial : serials) {
    for (std::int64_t h = 0; h < shape.num_kv_heads; ++h) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        rows.k.push_back(KElement(serial, layer, h, d));
      for (std::int64_t d = 0; d < shape.head_dim_v; ++d)
        rows.v.push_back(VElement(serial, layer, h, d));
    }
    rows.k.insert(rows.k.end(), pad, filler);
    rows.v.insert(rows.v.end(), pad, filler);
  }
  return rows;
}

/// Reserves and writes the tokens `serials` on every layer.
inline Status Append(KvCache& cache, SequenceId sequence, const std::vector<std::int64_t>& serials,
                     std::int64_t pad = 0, float filler = 0) {
  const std::int64_t position = cache.length(sequence);
  const std::int64_t count = static_cast<std::int64_t>(serials.size());
  if (Status status = cache.Reserve(sequence, count); !status.ok()) return status;
  const std::vector<KvLayerShape>& layers = cache.params().layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::int64_t layer = static_cast<std::int64_t>(l);
    const Rows rows = MakeRows(layers[l], layer, serials, pad, filler);
    Status status = cache.Write(sequence, layer, position, count, rows.k.data(), rows.v.data(),
                                rows.k_stride, rows.v_stride);
    if (!status.ok()) return status;
  }
  return Status();
}

/// Whether the row at `position` of every layer and head is that of token `serial`.
inline bool HoldsToken(const KvCache& cache, SequenceId sequence, std::int64_t position,
                       std::int64_t serial) {
  const std::vector<KvLayerShape>& layers = cache.params().layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::int64_t layer = static_cast<std::int64_t>(l);
    std::vector<float> k(layers[l].head_dim), v(layers[l].head_dim_v);
    for (std::int64_t h = 0; h < layers[l].num_kv_heads; ++h) {
      if (!cache.Read(sequence, layer, h, position, k.data(), v.data()).ok()) return false;
      for (std::size_t d = 0; d < k.size(); ++d)
        if (k[d] != KElement(serial, layer, h, static_cast<std::int64_t>(d))) return false;
      for (std::size_t d = 0; d < v.size(); ++d)
        if (v[d] != VElement(serial, layer, h, static_cast<std::int64_t>(d))) return false;
    }
  }
  return true;
}

/// 0, 1, ..., count - 1, plus `first`.
inline std::vector<std::int64_t> Serials(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> serials;
  for (std::int64_t i = 0; i < count; ++i) serials.push_back(first + i);
  return serials;
}

}  // namespace manyhead
