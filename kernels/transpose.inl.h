#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/simd.inl.h"

/// Converts rows of 16 tokens to a tile [D][16], token innermost: the layout of keys in pages (see
/// kv_layout.h) and in the products with them.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

/// The rows of a tile. Where there are fewer than 16, the last row replaces the missing ones: their
/// lanes hold numbers, and no memory beyond the rows is read.
template <class From>
struct TileRows {
  const From* row[kKvTile];

  /// Sets 1 <= count <= 16 rows, `stride` elements apart.
  TileRows(const From* rows, std::int64_t stride, std::int64_t count) {
    for (std::int64_t t = 0; t < kKvTile; ++t) row[t] = rows + (t < count ? t : count - 1) * stride;
  }
};

/// Stores columns [begin, end) of the tile.
template <class From, class T>
void StoreTileColumns(const TileRows<From>& rows, std::int64_t begin, std::int64_t end, T* tile) {
  for (std::int64_t c = begin; c < end; ++c)
    for (std::int64_t t = 0; t < kKvTile; ++t)
      Narrow(Widen(rows.row[t][c]), tile + c * kKvTile + t);
}

#ifdef __AVX2__

constexpr int kBlock = 8;  ///< rows and columns that are transposed in registers at a time

MANYHEAD_INLINE __m256 LoadBlock(const float* p) { return _mm256_loadu_ps(p); }
MANYHEAD_INLINE __m256 LoadBlock(const F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
MANYHEAD_INLINE __m256 LoadBlock(const Bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/// Exchanges lane j of m[i] with lane i of m[j].
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

/// Stores one element of 16 tokens.
template <class T>
MANYHEAD_INLINE void StoreLanes(__m256 low, __m256 high, T* to) {
#ifdef __AVX512F__
  Simd::Store(to, _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
#else
  Simd::Store(to, low);
  Simd::Store(to + kBlock, high);
#endif
}

/// Computes tile[c * 16 + t] = rows.row[t][c], c < d, t < 16.
template <class From, class T>
void StoreTile(const TileRows<From>& rows, std::int64_t d, T* tile) {
  std::int64_t c = 0;
  for (; c + kBlock <= d; c += kBlock) {
    __m256 low[kBlock], high[kBlock];
    for (int i = 0; i < kBlock; ++i) low[i] = LoadBlock(rows.row[i] + c);
    for (int i = 0; i < kBlock; ++i) high[i] = LoadBlock(rows.row[i + kBlock] + c);
    Transpose(low);
    Transpose(high);
    for (int i = 0; i < kBlock; ++i) StoreLanes(low[i], high[i], tile + (c + i) * kKvTile);
  }
  StoreTileColumns(rows, c, d, tile);
}

/// Computes packed[c * count + r] = rows[r][c] * scale for `count` <= 16 rows; the elements after
/// the last one, up to a multiple of 16, may be overwritten.
inline void InterleaveRows(const float* const* rows, std::int64_t count, std::int64_t d,
                           float scale, float* packed) {
  const __m256 factor = _mm256_set1_ps(scale);
  std::int64_t c = 0;
  // Whole vectors are stored; the next column overwrites the lanes beyond the rows.
  for (; c + kBlock <= d; c += kBlock) {
    __m256 low[kBlock], high[kBlock];
    const auto load = [&](std::int64_t r) {
      return _mm256_mul_ps(_mm256_loadu_ps(rows[r < count ? r : count - 1] + c), factor);
    };
    for (int i = 0; i < kBlock; ++i) low[i] = load(i);
    Transpose(low);
    if (count > kBlock) {
      for (int i = 0; i < kBlock; ++i) high[i] = load(i + kBlock);
      Transpose(high);
    }
    for (int i = 0; i < kBlock; ++i) {
      float* const to = packed + (c + i) * count;
      _mm256_storeu_ps(to, low[i]);
      if (count > kBlock) _mm256_storeu_ps(to + kBlock, high[i]);
    }
  }
  for (; c < d; ++c)
    for (std::int64_t r = 0; r < count; ++r) packed[c * count + r] = rows[r][c] * scale;
}

#else

inline void InterleaveRows(const float* const* rows, std::int64_t count, std::int64_t d,
                           float scale, float* packed) {
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t c = 0; c < d; ++c) packed[c * count + r] = rows[r][c] * scale;
}

template <class From, class T>
void StoreTile(const TileRows<From>& rows, std::int64_t d, T* tile) {
  StoreTileColumns(rows, 0, d, tile);
}

#endif

}  // namespace
}  // namespace manyhead::kernels
