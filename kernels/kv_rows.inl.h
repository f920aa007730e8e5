#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/kv_quant.inl.h"
#include "kernels/simd.inl.h"
#include "kernels/transpose.inl.h"

/// Moves f32 rows of tokens into a page and back.
///
/// A prefill consists of whole tiles, 16 rows at a time. A decode step is one row: its K elements
/// are stored 16 apart, D stores into D / 2 cache lines (f16). These scattered stores happen once
/// per token, while each later step reads the token's K once, in order; for 16 heads of D 128 they
/// are 2048 stores.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// Computes to[i] = from[i], i < n.
template <class T>
void NarrowRow(const float* from, std::int64_t n, T* to) {
  std::int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::Store(to + i, Simd::Load(from + i));
  for (; i < n; ++i) Narrow(from[i], to + i);
}

/// Stores one row in lane 0 of the tile that starts at `lane`.
template <class T>
void ScatterRow(const float* from, std::int64_t n, T* lane) {
  constexpr std::int64_t kChunk = 64;  // converts at vector width before it scatters
  T block[kChunk];
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const std::int64_t size = n - i < kChunk ? n - i : kChunk;
    NarrowRow(from + i, size, block);
    for (std::int64_t j = 0; j < size; ++j) lane[(i + j) * kKvTile] = block[j];
  }
}

/// Stores the keys of the tokens [lane, lane + count) of a tile.
template <class T>
void StoreKeys(const KvPageLayout& layout, std::byte* tile, std::int64_t lane, std::int64_t count,
               const float* k, std::int64_t stride) {
  T* to = reinterpret_cast<T*>(tile);
  if (count == kKvTile) {
    StoreTile(TileRows<float>(k, stride, kKvTile), layout.head_dim, to);
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      ScatterRow(k + i * stride, layout.head_dim, to + lane + i);
  }
}

inline void StoreTileKeys(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                          std::int64_t count, const float* k, std::int64_t stride) {
  switch (layout.k_type) {
    case KvType::kF32:
      return StoreKeys<float>(layout, tile, lane, count, k, stride);
    case KvType::kF16:
      return StoreKeys<F16>(layout, tile, lane, count, k, stride);
    case KvType::kBf16:
      return StoreKeys<Bf16>(layout, tile, lane, count, k, stride);
    case KvType::kInt8:
      return StoreInt8Keys(layout, tile, lane, count, k, stride);
    case KvType::kInt4:
      return StoreInt4Keys(layout, tile, lane, count, k, stride);
  }
}

/// Stores the value of one token of a tile.
template <class T>
void StoreValue(const KvPageLayout& layout, std::byte* tile, std::int64_t lane, const float* v) {
  NarrowRow(v, layout.head_dim_v, reinterpret_cast<T*>(tile) + lane * layout.v_row);
}

inline void StoreTileValue(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                           const float* v) {
  switch (layout.v_type) {
    case KvType::kF32:
      return StoreValue<float>(layout, tile, lane, v);
    case KvType::kF16:
      return StoreValue<F16>(layout, tile, lane, v);
    case KvType::kBf16:
      return StoreValue<Bf16>(layout, tile, lane, v);
    case KvType::kInt8:
      return StoreInt8Value(layout, tile, lane, v);
    case KvType::kInt4:
      return StoreInt4Value(layout, tile, lane, v);
  }
}

inline void StoreRows(const KvPageLayout& layout, std::byte* page, std::int64_t first,
                      std::int64_t count, const float* k, std::int64_t k_stride, const float* v,
                      std::int64_t v_stride) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t tile = (first + i) / kKvTile, lane = (first + i) % kKvTile;
    const std::int64_t rows = count - i < kKvTile - lane ? count - i : kKvTile - lane;
    StoreTileKeys(layout, page + tile * layout.k_tile_bytes, lane, rows, k + i * k_stride,
                  k_stride);
    std::byte* v_tile = page + layout.v_offset_bytes + tile * layout.v_tile_bytes;
    for (std::int64_t t = 0; t < rows; ++t)
      StoreTileValue(layout, v_tile, lane + t, v + (i + t) * v_stride);
    i += rows;
  }
}

template <class T>
void WidenStrided(const std::byte* tile, std::int64_t first, std::int64_t stride, std::int64_t n,
                  float* to) {
  const T* from = reinterpret_cast<const T*>(tile) + first;
  for (std::int64_t i = 0; i < n; ++i) to[i] = Widen(from[i * stride]);
}

inline void LoadKey(const KvPageLayout& layout, const std::byte* tile, std::int64_t lane,
                    float* k) {
  const std::int64_t d = layout.head_dim;
  switch (layout.k_type) {
    case KvType::kF32:
      return WidenStrided<float>(tile, lane, kKvTile, d, k);
    case KvType::kF16:
      return WidenStrided<F16>(tile, lane, kKvTile, d, k);
    case KvType::kBf16:
      return WidenStrided<Bf16>(tile, lane, kKvTile, d, k);
    case KvType::kInt8:
      return LoadInt8Row(tile + lane, kKvTile,
                         reinterpret_cast<const float*>(tile + layout.k_scale_bytes)[lane], d, k);
    case KvType::kInt4:
      return LoadInt4Key(layout, tile, lane, k);
  }
}

inline void LoadValue(const KvPageLayout& layout, const std::byte* tile, std::int64_t lane,
                      float* v) {
  const std::int64_t d = layout.head_dim_v, first = lane * layout.v_row;
  switch (layout.v_type) {
    case KvType::kF32:
      return WidenStrided<float>(tile, first, 1, d, v);
    case KvType::kF16:
      return WidenStrided<F16>(tile, first, 1, d, v);
    case KvType::kBf16:
      return WidenStrided<Bf16>(tile, first, 1, d, v);
    case KvType::kInt8:
      return LoadInt8Row(tile + first, 1,
                         reinterpret_cast<const float*>(tile + layout.v_scale_bytes)[lane], d, v);
    case KvType::kInt4:
      return LoadInt4Value(layout, tile, lane, v);
  }
}

/// Reads a row with plain code on every instruction set: it serves inspection, not attention.
inline void LoadRow(const KvPageLayout& layout, const std::byte* page, std::int64_t token, float* k,
                    float* v) {
  const std::int64_t tile = token / kKvTile, lane = token % kKvTile;
  if (k != nullptr) LoadKey(layout, page + tile * layout.k_tile_bytes, lane, k);
  if (v != nullptr)
    LoadValue(layout, page + layout.v_offset_bytes + tile * layout.v_tile_bytes, lane, v);
}

}  // namespace
}  // namespace manyhead::kernels
