#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/simd.inl.h"
#include "kernels/transpose.inl.h"

/// Moves f32 rows of tokens into a page and back.
///
/// A prefill is whole tiles, 16 rows at a time. A decode step is one row: its K elements go 16
/// apart, D stores into D / 2 cache lines (f16). That scatter is paid once per token, where each
/// later step reads the token's K once, in order; for 16 heads of D 128 it is 2048 stores.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// to[i] = from[i], i < n.
template <class T>
void NarrowRow(const float* from, std::int64_t n, T* to) {
  std::int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::Store(to + i, Simd::Load(from + i));
  for (; i < n; ++i) Narrow(from[i], to + i);
}

/// One row into lane 0 of the tile that starts at `lane`.
template <class T>
void ScatterRow(const float* from, std::int64_t n, T* lane) {
  constexpr std::int64_t kChunk = 64;  // converts at vector width what it then scatters
  T block[kChunk];
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const std::int64_t size = n - i < kChunk ? n - i : kChunk;
    NarrowRow(from + i, size, block);
    for (std::int64_t j = 0; j < size; ++j) lane[(i + j) * kKvTile] = block[j];
  }
}

template <class T>
void StoreK(std::int64_t d, std::byte* page, std::int64_t first, std::int64_t count, const float* k,
            std::int64_t k_stride) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t token = first + i, lane = token % kKvTile;
    T* tile = reinterpret_cast<T*>(page) + (token - lane) * d;
    if (lane == 0 && count - i >= kKvTile) {
      StoreTile(TileRows<float>(k + i * k_stride, k_stride, kKvTile), d, tile);
      i += kKvTile;
    } else {
      ScatterRow(k + i * k_stride, d, tile + lane);
      ++i;
    }
  }
}

template <class T>
void StoreV(const KvPageLayout& layout, std::byte* page, std::int64_t first, std::int64_t count,
            const float* v, std::int64_t v_stride) {
  T* rows = reinterpret_cast<T*>(page + layout.v_offset_bytes) + first * layout.v_row;
  for (std::int64_t i = 0; i < count; ++i)
    NarrowRow(v + i * v_stride, layout.head_dim_v, rows + i * layout.v_row);
}

inline void StoreRows(const KvPageLayout& layout, std::byte* page, std::int64_t first,
                      std::int64_t count, const float* k, std::int64_t k_stride, const float* v,
                      std::int64_t v_stride) {
  switch (layout.k_type) {
    case KvType::kF32:
      StoreK<float>(layout.head_dim, page, first, count, k, k_stride);
      break;
    case KvType::kF16:
      StoreK<F16>(layout.head_dim, page, first, count, k, k_stride);
      break;
    case KvType::kBf16:
      StoreK<Bf16>(layout.head_dim, page, first, count, k, k_stride);
      break;
    default:
      break;
  }
  switch (layout.v_type) {
    case KvType::kF32:
      StoreV<float>(layout, page, first, count, v, v_stride);
      break;
    case KvType::kF16:
      StoreV<F16>(layout, page, first, count, v, v_stride);
      break;
    case KvType::kBf16:
      StoreV<Bf16>(layout, page, first, count, v, v_stride);
      break;
    default:
      break;
  }
}

template <class T>
void WidenStrided(const std::byte* base, std::int64_t first, std::int64_t stride, std::int64_t n,
                  float* to) {
  const T* from = reinterpret_cast<const T*>(base) + first;
  for (std::int64_t i = 0; i < n; ++i) to[i] = Widen(from[i * stride]);
}

inline void WidenTyped(KvType type, const std::byte* base, std::int64_t first, std::int64_t stride,
                       std::int64_t n, float* to) {
  switch (type) {
    case KvType::kF32:
      return WidenStrided<float>(base, first, stride, n, to);
    case KvType::kF16:
      return WidenStrided<F16>(base, first, stride, n, to);
    case KvType::kBf16:
      return WidenStrided<Bf16>(base, first, stride, n, to);
    default:
      return;
  }
}

/// Plain on every instruction set: it serves inspection, not attention.
inline void LoadRow(const KvPageLayout& layout, const std::byte* page, std::int64_t token, float* k,
                    float* v) {
  const std::int64_t lane = token % kKvTile;
  if (k != nullptr)
    WidenTyped(layout.k_type, page, (token - lane) * layout.head_dim + lane, kKvTile,
               layout.head_dim, k);
  if (v != nullptr)
    WidenTyped(layout.v_type, page + layout.v_offset_bytes, token * layout.v_row, 1,
               layout.head_dim_v, v);
}

}  // namespace
}  // namespace manyhead::kernels
