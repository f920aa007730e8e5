#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/simd.inl.h"

/// The two matrix products of attention, blocked for registers: rows of queries times a tile of
/// keys, and rows of probabilities times rows of values.
///
/// Each accumulator is one FMA chain, in the order of head_dim or of the keys, whatever the
/// blocking. A block of R rows and C vectors makes R * C accumulators from C loads and R
/// broadcasts, so R * C has to cover FMA latency times ports (8 to 10) and to leave registers for a
/// row of loads and a broadcast: at most 24 of 32, 12 of 16.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

template <class V>
inline constexpr int kAccumulators = V::kRegisters * 3 / 4;

template <class V>
inline constexpr int kTileVectors = static_cast<int>(kKvTile) / V::kLanes;

/// Most rows of a register block: two tiles of keys beside each other where registers allow.
template <class V>
inline constexpr int kRowBlock = V::kRegisters == 32    ? 12
                                 : kTileVectors<V> <= 2 ? 6
                                                        : 3;

/// The greatest power of two up to `limit` of units of `vectors` that go with `rows` rows.
template <class V>
constexpr int UnitsFor(int rows, int vectors, int limit) {
  int units = 1;
  while (units * 2 <= limit && rows * vectors * units * 2 <= kAccumulators<V>) units *= 2;
  return units;
}

template <class V>
constexpr int TilesFor(int rows) {
  return UnitsFor<V>(rows, kTileVectors<V>, static_cast<int>(kAttentionTiles));
}

/// Columns of V in units of kKvTile.
template <class V>
constexpr int ColumnsFor(int rows) {
  return UnitsFor<V>(rows, kTileVectors<V>, 8 / kTileVectors<V> > 0 ? 8 / kTileVectors<V> : 1);
}

/// Rows in equal blocks of at most kRowBlock, the last one shorter: 7 rows are 4 + 3, not 6 + 1.
template <class V>
constexpr std::int64_t RowBlockFor(std::int64_t rows) {
  const std::int64_t blocks = (rows + kRowBlock<V> - 1) / kRowBlock<V>;
  return (rows + blocks - 1) / blocks;
}

/// Asks for memory of the next block while this one is computed, a line at a time: all at once they
/// would fill the line buffers and stop the loads that this block needs. Into L2: a block of keys
/// and values is about as large as L1. Only where so few rows share the keys that memory, not
/// arithmetic, is the bound.
template <int kRows>
MANYHEAD_INLINE void AskFor(const void* line) {
  if constexpr (kRows <= 4) __builtin_prefetch(line, 0, 2);
}

/// logits[r, 16 t + i] = sum_d q[d, r] * k[t][d, i]; logits rows are kAttentionBlock apart.
template <class V, class T, int kRows, int kTiles>
void ScoreRows(const float* q, const T* const* k, const T* const* next, std::int64_t head_dim,
               float* logits) {
  using F = typename V::F;
  constexpr int kVectors = kTiles * kTileVectors<V>;
  F acc[kRows][kVectors];
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Zero(); });
  });
  const T *tile[kTiles], *ahead[kTiles];
  Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA { tile[t] = k[t], ahead[t] = next[t]; });
  for (std::int64_t d = 0; d < head_dim; ++d) {
    Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA { AskFor<kRows>(ahead[t] + d * kKvTile); });
    F key[kVectors];
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      key[j] = V::Load(tile[j / kTileVectors<V>] + d * kKvTile + j % kTileVectors<V> * V::kLanes);
    });
    Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
      const F x = V::Set(q[d * kRows + r]);
      Unroll<kVectors>([&]<int j>()
                           MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Fma(x, key[j], acc[r][j]); });
    });
  }
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      V::Store(logits + r * kAttentionBlock + j * V::kLanes, acc[r][j]);
    });
  });
}

template <class T>
using ScoreFn = void (*)(const float*, const T* const*, const T* const*, std::int64_t, float*);

template <class V, class T, int kTiles, int... kRow>
constexpr ScoreFn<T> PickScore(std::int64_t rows, std::integer_sequence<int, kRow...>) {
  // Rows that would not fit beside kTiles tiles are never asked for.
  constexpr ScoreFn<T> kFns[] = {
      &ScoreRows<V, T, kRow + 1,
                 (kTiles < TilesFor<V>(kRow + 1) ? kTiles : TilesFor<V>(kRow + 1))>...};
  return kFns[rows - 1];
}

/// The kernel for `rows` rows beside `tiles` tiles.
template <class V, class T, int kTiles = TilesFor<V>(1)>
ScoreFn<T> ScoreFor(std::int64_t rows, int tiles) {
  if constexpr (kTiles > TilesFor<V>(kRowBlock<V>)) {
    if (tiles < kTiles) return ScoreFor<V, T, kTiles / 2>(rows, tiles);
  }
  return PickScore<V, T, kTiles>(rows, std::make_integer_sequence<int, kRowBlock<V>>{});
}

/// Logits of all rows of the tile. A tile of keys stays in L1 while all rows pass over it.
template <class V, class T>
void ScoreBlock(const AttentionTile& tile, const AttentionBlock& block) {
  const std::int64_t step = RowBlockFor<V>(tile.rows);
  const int tiles = TilesFor<V>(static_cast<int>(step));
  for (std::int64_t t = 0; t < block.tiles; t += tiles) {
    const T *k[kAttentionTiles], *next[kAttentionTiles];
    for (std::int64_t i = 0; i < tiles; ++i) {
      // A tile that does not exist is stood in for by the last: its logits are not looked at.
      const std::int64_t present = t + i < block.tiles ? t + i : block.tiles - 1;
      k[i] = static_cast<const T*>(block.k[present]);
      next[i] = static_cast<const T*>(block.next_k[present]);
    }
    for (std::int64_t r = 0; r < tile.rows; r += step) {
      const std::int64_t rows = tile.rows - r < step ? tile.rows - r : step;
      ScoreFor<V, T>(rows, tiles)(tile.q + r * tile.head_dim, k, next, tile.head_dim,
                                  tile.probs + r * kAttentionBlock + t * kKvTile);
    }
  }
}

/// Value rows of consecutive keys, and where their probabilities lie in a row of `probs`.
struct ValueRun {
  const void* v;
  const void* next;  ///< where the next block has the same rows
  std::int64_t column;
  std::int64_t count;
};

struct ValueRuns {
  ValueRun run[kAttentionTiles];
  int count = 0;
};

/// The runs of keys [begin, end) of `block`; T is the type of v.
template <class T>
ValueRuns RunsOf(const AttentionBlock& block, std::int64_t begin, std::int64_t end) {
  ValueRuns runs;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    const std::int64_t first = block.first + t * kKvTile;
    const std::int64_t from = begin > first ? begin : first;
    const std::int64_t to = end < first + kKvTile ? end : first + kKvTile;
    if (from >= to) continue;
    const std::int64_t offset = (from - first) * block.v_stride;
    runs.run[runs.count++] = {static_cast<const T*>(block.v[t]) + offset,
                              static_cast<const T*>(block.next_v[t]) + offset, from - block.first,
                              to - from};
  }
  return runs;
}

/// o[r, c] = o[r, c] * correction[r] + sum_s probs[r, s] * v[s, c] for kUnits * 16 columns c from
/// `column` on.
template <class V, class T, int kRows, int kUnits>
void AddValueRows(const ValueRuns& runs, std::int64_t v_stride, std::int64_t column,
                  const float* probs, const float* correction, float* o, std::int64_t o_stride) {
  using F = typename V::F;
  constexpr int kVectors = kUnits * kTileVectors<V>;
  constexpr int kLine = 64 / static_cast<int>(sizeof(T));
  constexpr int kLines = (kVectors * V::kLanes + kLine - 1) / kLine;
  F acc[kRows][kVectors];
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    const F factor = V::Set(correction[r]);
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      acc[r][j] = V::Load(o + r * o_stride + column + j * V::kLanes) * factor;
    });
  });
  for (int i = 0; i < runs.count; ++i) {
    const T* v = static_cast<const T*>(runs.run[i].v) + column;
    const T* next = static_cast<const T*>(runs.run[i].next) + column;
    const float* p = probs + runs.run[i].column;
    for (const float* end = p + runs.run[i].count; p != end; ++p, v += v_stride, next += v_stride) {
      Unroll<kLines>([&]<int j>() MANYHEAD_INLINE_LAMBDA { AskFor<kRows>(next + j * kLine); });
      F value[kVectors];
      Unroll<kVectors>([&]<int j>()
                           MANYHEAD_INLINE_LAMBDA { value[j] = V::Load(v + j * V::kLanes); });
      Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
        const F x = V::Set(p[r * kAttentionBlock]);
        Unroll<kVectors>(
            [&]<int j>() MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Fma(x, value[j], acc[r][j]); });
      });
    }
  }
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      V::Store(o + r * o_stride + column + j * V::kLanes, acc[r][j]);
    });
  });
}

using AddFn = void (*)(const ValueRuns&, std::int64_t, std::int64_t, const float*, const float*,
                       float*, std::int64_t);

template <class V, class T, int kUnits, int... kRow>
constexpr AddFn PickAdd(std::int64_t rows, std::integer_sequence<int, kRow...>) {
  constexpr AddFn kFns[] = {
      &AddValueRows<V, T, kRow + 1,
                    (kUnits < ColumnsFor<V>(kRow + 1) ? kUnits : ColumnsFor<V>(kRow + 1))>...};
  return kFns[rows - 1];
}

template <class V, class T, int kUnits = ColumnsFor<V>(1)>
AddFn AddFor(std::int64_t rows, int units) {
  if constexpr (kUnits > 1) {
    if (units < kUnits) return AddFor<V, T, kUnits / 2>(rows, units);
  }
  return PickAdd<V, T, kUnits>(rows, std::make_integer_sequence<int, kRowBlock<V>>{});
}

/// Rows [row, row + rows) of the tile take the values of `runs`. A panel of columns of V stays in
/// L1 while all rows pass over it.
template <class V, class T>
void AddRuns(const AttentionTile& tile, std::int64_t v_stride, const ValueRuns& runs,
             const float* correction, std::int64_t row, std::int64_t rows) {
  const std::int64_t step = RowBlockFor<V>(rows);
  int units = ColumnsFor<V>(static_cast<int>(step));
  for (std::int64_t column = 0; column < tile.v_row; column += units * kKvTile) {
    while (units * kKvTile > tile.v_row - column) units /= 2;
    for (std::int64_t r = row; r < row + rows; r += step) {
      const std::int64_t count = row + rows - r < step ? row + rows - r : step;
      AddFor<V, T>(count, units)(runs, v_stride, column, tile.probs + r * kAttentionBlock,
                                 correction + r, tile.state.o + r * tile.v_row, tile.v_row);
    }
  }
}

/// Whether every value of `runs` is finite.
template <class V, class T>
bool AllFinite(const ValueRuns& runs, std::int64_t v_stride, std::int64_t head_dim_v) {
  typename V::F sum = V::Zero();  // x * 0 is 0, or NaN where x is not finite
  for (int i = 0; i < runs.count; ++i) {
    const T* v = static_cast<const T*>(runs.run[i].v);
    for (std::int64_t s = 0; s < runs.run[i].count; ++s, v += v_stride) {
      std::int64_t c = 0;
      for (; c + V::kLanes <= head_dim_v; c += V::kLanes) {
        sum = V::Fma(V::Load(v + c), V::Zero(), sum);
      }
      if (c < head_dim_v) {
        sum = V::Fma(V::LoadTail(v + c, static_cast<int>(head_dim_v - c)), V::Zero(), sum);
      }
    }
  }
  return V::ReduceAdd(sum) == 0.0F;
}

/// The value part of a block. A key that a row does not see has probability 0, which would still
/// turn its NaN or infinity into NaN: where such values exist, each row runs over its own keys
/// alone, with the same arithmetic.
template <class V, class T>
void AddBlock(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
              bool masked) {
  const ValueRuns runs = RunsOf<T>(block, block.begin, block.end);
  if (!masked || AllFinite<V, T>(runs, block.v_stride, block.head_dim_v)) {
    AddRuns<V, T>(tile, block.v_stride, runs, correction, 0, tile.rows);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t begin = tile.first_key[r] > block.begin ? tile.first_key[r] : block.begin;
    const std::int64_t end = tile.end_key[r] < block.end ? tile.end_key[r] : block.end;
    AddRuns<V, T>(tile, block.v_stride, RunsOf<T>(block, begin, end), correction, r, 1);
  }
}

}  // namespace
}  // namespace manyhead::kernels
