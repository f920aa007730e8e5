#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_convert.inl.h"
#include "kernels/kv_layout.h"

/// Moves f32 rows of tokens into a page and back.
///
/// `Simd` says how a run of elements is converted and how a K tile is transposed:
///   NarrowRow(from, n, to)                   to[i] = from[i]
///   StoreTile(k, k_stride, d, tile)          tile[c * 16 + t] = k[t * k_stride + c], c < d, t < 16
///
/// A prefill is whole tiles, 16 rows at a time. A decode step is one row: its K elements go 16
/// apart, D stores into D / 2 cache lines (f16). That scatter is paid once per token, where each
/// later step reads the token's K once, in order; for 16 heads of D 128 it is 2048 stores.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// One row into lane 0 of the tile that starts at `lane`.
template <class Simd, class T>
void ScatterRow(const float* from, std::int64_t n, T* lane) {
  constexpr std::int64_t kBlock = 64;  // converts at vector width what it then scatters
  T block[kBlock];
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t size = n - i < kBlock ? n - i : kBlock;
    Simd::NarrowRow(from + i, size, block);
    for (std::int64_t j = 0; j < size; ++j) lane[(i + j) * kKvTile] = block[j];
  }
}

template <class Simd, class T>
void StoreK(std::int64_t d, std::byte* page, std::int64_t first, std::int64_t count, const float* k,
            std::int64_t k_stride) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t token = first + i, lane = token % kKvTile;
    T* tile = reinterpret_cast<T*>(page) + (token - lane) * d;
    if (lane == 0 && count - i >= kKvTile) {
      Simd::StoreTile(k + i * k_stride, k_stride, d, tile);
      i += kKvTile;
    } else {
      ScatterRow<Simd>(k + i * k_stride, d, tile + lane);
      ++i;
    }
  }
}

template <class Simd, class T>
void StoreV(const KvPageLayout& layout, std::byte* page, std::int64_t first, std::int64_t count,
            const float* v, std::int64_t v_stride) {
  T* rows = reinterpret_cast<T*>(page + layout.v_offset_bytes) + first * layout.v_row;
  for (std::int64_t i = 0; i < count; ++i)
    Simd::NarrowRow(v + i * v_stride, layout.head_dim_v, rows + i * layout.v_row);
}

template <class Simd>
void StoreRows(const KvPageLayout& layout, std::byte* page, std::int64_t first, std::int64_t count,
               const float* k, std::int64_t k_stride, const float* v, std::int64_t v_stride) {
  switch (layout.k_type) {
    case KvType::kF32:
      StoreK<Simd, float>(layout.head_dim, page, first, count, k, k_stride);
      break;
    case KvType::kF16:
      StoreK<Simd, F16>(layout.head_dim, page, first, count, k, k_stride);
      break;
    case KvType::kBf16:
      StoreK<Simd, Bf16>(layout.head_dim, page, first, count, k, k_stride);
      break;
  }
  switch (layout.v_type) {
    case KvType::kF32:
      StoreV<Simd, float>(layout, page, first, count, v, v_stride);
      break;
    case KvType::kF16:
      StoreV<Simd, F16>(layout, page, first, count, v, v_stride);
      break;
    case KvType::kBf16:
      StoreV<Simd, Bf16>(layout, page, first, count, v, v_stride);
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
