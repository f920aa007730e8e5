#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention_blocking.inl.h"

/// Computes the first product of attention: rows of queries times tiles of keys.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

/// Reads keys of neighbouring tiles as vectors of tokens at one element of head_dim.
template <class V, class T, int kTiles>
class KeyReader {
 public:
  static constexpr int kVectors = kTiles * kTileVectors<V>;
  /// Number of elements that Enter makes readable.
  static constexpr std::int64_t kGroup = INT64_MAX;

  MANYHEAD_INLINE KeyReader(const void* const* tiles, const void* const*) {
    Unroll<kTiles>([&]<int t>()
                       MANYHEAD_INLINE_LAMBDA { tile_[t] = static_cast<const T*>(tiles[t]); });
  }
  MANYHEAD_INLINE void Enter(std::int64_t) {}
  template <int j>
  MANYHEAD_INLINE typename V::F Load(std::int64_t d) const {
    return V::Load(tile_[j / kTileVectors<V>] + d * kKvTile + j % kTileVectors<V> * V::kLanes);
  }

 private:
  const T* tile_[kTiles];
};

template <class V, int kTiles>
class KeyReader<V, I4, kTiles> {
 public:
  static constexpr int kVectors = kTiles * kTileVectors<V>;
  static constexpr std::int64_t kGroup = kKvGroup;

  MANYHEAD_INLINE KeyReader(const void* const* tiles, const void* const* scales) {
    Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA {
      tile_[t] = static_cast<const I4*>(tiles[t]);
      group_[t] = static_cast<const F16*>(scales[t]);
    });
    Enter(0);
  }
  MANYHEAD_INLINE void Enter(std::int64_t d) {
    const std::int64_t offset = d / kKvGroup * 2 * kKvTile;
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      const F16* group = group_[j / kTileVectors<V>] + offset + j % kTileVectors<V> * V::kLanes;
      scale_[j] = V::Load(group);
      min_[j] = V::Load(group + kKvTile);
    });
  }
  template <int j>
  MANYHEAD_INLINE typename V::F Load(std::int64_t d) const {
    const I4* pairs =
        tile_[j / kTileVectors<V>] + d / 2 * kKvTile + j % kTileVectors<V> * V::kLanes;
    return V::Fma(V::LoadNibbles(pairs, static_cast<int>(d & 1)), scale_[j], min_[j]);
  }

 private:
  const I4* tile_[kTiles];
  const F16* group_[kTiles];
  typename V::F scale_[kVectors];
  typename V::F min_[kVectors];
};

/// Bytes of one element of head_dim in a K tile.
template <class T>
inline constexpr std::int64_t kKeyBytes = std::is_same_v<T, I4>
                                              ? kKvTile / 2
                                              : kKvTile* static_cast<std::int64_t>(sizeof(T));

/// Prefetches the keys at element d of head_dim in a K tile of T.
template <int kRows, class T>
MANYHEAD_INLINE void PrefetchKeys(const void* tile, std::int64_t d) {
  constexpr std::int64_t kPerLine = 64 / kKeyBytes<T>;
  if (kPerLine > 1 && d % kPerLine != 0) return;
  PrefetchLine<kRows>(static_cast<const char*>(tile) + d * kKeyBytes<T>);
}

/// Computes logits[r, 16 t + i] = sum_d q[d, r] * k[t][d, i]; logits rows are kAttentionBlock
/// apart.
template <class V, class T, int kRows, int kTiles>
void ScoreRows(const float* q, const void* const* k, const void* const* scales,
               const void* const* next, std::int64_t head_dim, float* logits) {
  using F = typename V::F;
  using Keys = KeyReader<V, T, kTiles>;
  constexpr int kVectors = Keys::kVectors;
  F acc[kRows][kVectors];
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Zero(); });
  });
  Keys keys(k, scales);
  const void* ahead[kTiles];
  Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA { ahead[t] = next[t]; });
  for (std::int64_t d = 0; d < head_dim;) {
    keys.Enter(d);
    const std::int64_t end = head_dim - d > Keys::kGroup ? d + Keys::kGroup : head_dim;
    for (; d < end; ++d) {
      Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA { PrefetchKeys<kRows, T>(ahead[t], d); });
      F key[kVectors];
      Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA { key[j] = keys.template Load<j>(d); });
      Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
        const F x = V::Set(q[d * kRows + r]);
        Unroll<kVectors>([&]<int j>()
                             MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Fma(x, key[j], acc[r][j]); });
      });
    }
  }
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      V::Store(logits + r * kAttentionBlock + j * V::kLanes, acc[r][j]);
    });
  });
}

using ScoreFn = void (*)(const float*, const void* const*, const void* const*, const void* const*,
                         std::int64_t, float*);

template <class V, class T, int kTiles, int... kRow>
constexpr ScoreFn PickScore(std::int64_t rows, std::integer_sequence<int, kRow...>) {
  // The table has no entries for more rows than fit beside kTiles tiles; they are never used.
  constexpr ScoreFn kFns[] = {
      &ScoreRows<V, T, kRow + 1,
                 (kTiles < TilesFor<V>(kRow + 1) ? kTiles : TilesFor<V>(kRow + 1))>...};
  return kFns[rows - 1];
}

/// Returns the kernel for `rows` rows beside `tiles` tiles.
template <class V, class T, int kTiles = TilesFor<V>(1)>
ScoreFn ScoreFor(std::int64_t rows, int tiles) {
  if constexpr (kTiles > TilesFor<V>(kRowBlock<V>)) {
    if (tiles < kTiles) return ScoreFor<V, T, kTiles / 2>(rows, tiles);
  }
  return PickScore<V, T, kTiles>(rows, std::make_integer_sequence<int, kRowBlock<V>>{});
}

/// Multiplies all rows of the tile with the keys. A tile of keys stays in L1 during all rows.
template <class V, class T>
void ScoreBlock(const AttentionTile& tile, const AttentionBlock& block) {
  const std::int64_t step = RowBlockFor<V>(tile.rows);
  const int tiles = TilesFor<V>(static_cast<int>(step));
  for (std::int64_t t = 0; t < block.tiles; t += tiles) {
    const void *k[kAttentionTiles], *scales[kAttentionTiles], *next[kAttentionTiles];
    for (std::int64_t i = 0; i < tiles; ++i) {
      // The last tile replaces one that does not exist: its logits are not used.
      const std::int64_t present = t + i < block.tiles ? t + i : block.tiles - 1;
      k[i] = block.k[present];
      scales[i] = block.k_scales[present];
      next[i] = block.next_k[present];
    }
    for (std::int64_t r = 0; r < tile.rows; r += step) {
      const std::int64_t rows = tile.rows - r < step ? tile.rows - r : step;
      ScoreFor<V, T>(rows, tiles)(tile.q + r * tile.head_dim, k, scales, next, tile.head_dim,
                                  tile.probs + r * kAttentionBlock + t * kKvTile);
    }
  }
}

}  // namespace
}  // namespace manyhead::kernels
