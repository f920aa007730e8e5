#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/simd.inl.h"

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

/// Columns [begin, end) of 16 rows of k into their tile.
template <class T>
void StoreTileColumns(const float* k, std::int64_t k_stride, std::int64_t begin, std::int64_t end,
                      T* tile) {
  for (std::int64_t c = begin; c < end; ++c)
    for (std::int64_t t = 0; t < kKvTile; ++t) Narrow(k[t * k_stride + c], tile + c * kKvTile + t);
}

#ifdef __AVX2__

constexpr int kBlock = 8;  ///< rows and columns that are transposed in registers at a time

/// m[i] lane j <-> m[j] lane i.
inline void Transpose(__m256 (&m)[kBlock]) {
  __m256 pairs[kBlock], quads[kBlock];
  for (int i = 0; i < kBlock; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
  }
  for (int i = 0; i < kBlock; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  for (int i = 0; i < kBlock / 2; ++i) {
    m[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    m[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

/// One element of 16 tokens.
template <class T>
MANYHEAD_INLINE void StoreLanes(__m256 low, __m256 high, T* to) {
#ifdef __AVX512F__
  Simd::Store(to, _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
#else
  Simd::Store(to, low);
  Simd::Store(to + kBlock, high);
#endif
}

/// tile[c * 16 + t] = k[t * k_stride + c], c < d, t < 16.
template <class T>
void StoreTile(const float* k, std::int64_t k_stride, std::int64_t d, T* tile) {
  std::int64_t c = 0;
  for (; c + kBlock <= d; c += kBlock) {
    __m256 low[kBlock], high[kBlock];
    for (int i = 0; i < kBlock; ++i) low[i] = _mm256_loadu_ps(k + i * k_stride + c);
    for (int i = 0; i < kBlock; ++i) high[i] = _mm256_loadu_ps(k + (i + kBlock) * k_stride + c);
    Transpose(low);
    Transpose(high);
    for (int i = 0; i < kBlock; ++i) StoreLanes(low[i], high[i], tile + (c + i) * kKvTile);
  }
  StoreTileColumns(k, k_stride, c, d, tile);
}

#else

template <class T>
void StoreTile(const float* k, std::int64_t k_stride, std::int64_t d, T* tile) {
  StoreTileColumns(k, k_stride, 0, d, tile);
}

#endif

template <class T>
void StoreK(std::int64_t d, std::byte* page, std::int64_t first, std::int64_t count, const float* k,
            std::int64_t k_stride) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t token = first + i, lane = token % kKvTile;
    T* tile = reinterpret_cast<T*>(page) + (token - lane) * d;
    if (lane == 0 && count - i >= kKvTile) {
      StoreTile(k + i * k_stride, k_stride, d, tile);
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
