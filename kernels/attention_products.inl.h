#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/attention_logits.inl.h"
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

/// Keys of one tile beside each other, as vectors of tokens at one element of head_dim.
template <class V, class T, int kTiles>
class KeyReader {
 public:
  static constexpr int kVectors = kTiles * kTileVectors<V>;
  /// Elements that Enter makes readable.
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

/// Bytes that one element of head_dim takes in a K tile.
template <class T>
inline constexpr std::int64_t kKeyBytes = std::is_same_v<T, I4>
                                              ? kKvTile / 2
                                              : kKvTile* static_cast<std::int64_t>(sizeof(T));

/// Asks for memory of the next block while this one is computed, a line at a time: all at once they
/// would fill the line buffers and stop the loads that this block needs. Into L2: a block of keys
/// and values is about as large as L1. Only where so few rows share the keys that memory, not
/// arithmetic, is the bound.
template <int kRows>
MANYHEAD_INLINE void AskFor(const void* line) {
  if constexpr (kRows <= 4) __builtin_prefetch(line, 0, 2);
}

/// The same for element d of head_dim in a K tile of T.
template <int kRows, class T>
MANYHEAD_INLINE void AskForKeys(const void* tile, std::int64_t d) {
  constexpr std::int64_t kPerLine = 64 / kKeyBytes<T>;
  if (kPerLine > 1 && d % kPerLine != 0) return;
  AskFor<kRows>(static_cast<const char*>(tile) + d * kKeyBytes<T>);
}

/// logits[r, 16 t + i] = sum_d q[d, r] * k[t][d, i]; logits rows are kAttentionBlock apart.
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
      Unroll<kTiles>([&]<int t>() MANYHEAD_INLINE_LAMBDA { AskForKeys<kRows, T>(ahead[t], d); });
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
  // Rows that would not fit beside kTiles tiles are never asked for.
  constexpr ScoreFn kFns[] = {
      &ScoreRows<V, T, kRow + 1,
                 (kTiles < TilesFor<V>(kRow + 1) ? kTiles : TilesFor<V>(kRow + 1))>...};
  return kFns[rows - 1];
}

/// The kernel for `rows` rows beside `tiles` tiles.
template <class V, class T, int kTiles = TilesFor<V>(1)>
ScoreFn ScoreFor(std::int64_t rows, int tiles) {
  if constexpr (kTiles > TilesFor<V>(kRowBlock<V>)) {
    if (tiles < kTiles) return ScoreFor<V, T, kTiles / 2>(rows, tiles);
  }
  return PickScore<V, T, kTiles>(rows, std::make_integer_sequence<int, kRowBlock<V>>{});
}

/// Products of all rows of the tile with the keys. A tile of keys stays in L1 while all rows pass
/// over it.
template <class V, class T>
void ScoreBlock(const AttentionTile& tile, const AttentionBlock& block) {
  const std::int64_t step = RowBlockFor<V>(tile.rows);
  const int tiles = TilesFor<V>(static_cast<int>(step));
  for (std::int64_t t = 0; t < block.tiles; t += tiles) {
    const void *k[kAttentionTiles], *scales[kAttentionTiles], *next[kAttentionTiles];
    for (std::int64_t i = 0; i < tiles; ++i) {
      // A tile that does not exist is stood in for by the last: its logits are not looked at.
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

/// Value rows of consecutive keys, and where their probabilities lie in a row of `probs`.
struct ValueRun {
  const void* v;
  const void* next;    ///< where the next block has the same rows
  const void* scales;  ///< of the first row: int4's groups
  std::int64_t column;
  std::int64_t count;
};

struct ValueRuns {
  ValueRun run[kAttentionBlock / 2];  ///< every other key seen makes the most runs
  int count = 0;
};

/// int4 groups of a value row.
MANYHEAD_INLINE std::int64_t ValueGroups(std::int64_t v_row) {
  return (v_row + kKvGroup - 1) / kKvGroup;
}

/// The runs of the keys of `block` that `seen` flags; T is the type of v.
template <class T>
ValueRuns RunsOf(const AttentionBlock& block, std::int64_t v_row, KeyBits seen) {
  ValueRuns runs;
  for (std::int64_t t = 0; t < block.tiles; ++t) {
    KeyBits left = seen >> (t * kKvTile) & 0xffffU;
    while (left != 0) {
      const std::int64_t from = __builtin_ctzll(left), count = __builtin_ctzll(~(left >> from));
      const std::int64_t offset = from * block.v_stride;
      const F16* groups = static_cast<const F16*>(block.v_scales[t]);
      if constexpr (std::is_same_v<T, I4>) groups += from * 2 * ValueGroups(v_row);
      runs.run[runs.count++] = {static_cast<const T*>(block.v[t]) + offset,
                                static_cast<const T*>(block.next_v[t]) + offset, groups,
                                t * kKvTile + from, count};
      left &= ~(((KeyBits{1} << count) - 1) << from);
    }
  }
  return runs;
}

/// Rows of values of one run, as vectors of columns from `column` on.
template <class V, class T, int kVectors>
class ValueReader {
 public:
  MANYHEAD_INLINE ValueReader(const ValueRun& run, std::int64_t column, std::int64_t)
      : row_(static_cast<const T*>(run.v) + column) {}
  MANYHEAD_INLINE void Next(std::int64_t v_stride) { row_ += v_stride; }
  MANYHEAD_INLINE void Read(typename V::F (&value)[kVectors]) const {
    Unroll<kVectors>([&]<int j>()
                         MANYHEAD_INLINE_LAMBDA { value[j] = V::Load(row_ + j * V::kLanes); });
  }

 private:
  const T* row_;
};

template <class V, int kVectors>
class ValueReader<V, I4, kVectors> {
 public:
  MANYHEAD_INLINE ValueReader(const ValueRun& run, std::int64_t column, std::int64_t v_row)
      : row_(static_cast<const I4*>(run.v)),
        groups_(static_cast<const F16*>(run.scales)),
        column_(column),
        next_(2 * ValueGroups(v_row)) {}
  MANYHEAD_INLINE void Next(std::int64_t v_stride) {
    row_ += v_stride;
    groups_ += next_;
  }
  MANYHEAD_INLINE void Read(typename V::F (&value)[kVectors]) const {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      constexpr std::int64_t kHalf = kKvGroup / 2;
      const std::int64_t c = column_ + j * V::kLanes, group = c / kKvGroup;
      const typename V::F x =
          V::LoadNibbles(row_ + group * kHalf + c % kHalf, static_cast<int>(c / kHalf % 2));
      value[j] =
          V::Fma(x, V::Set(Widen(groups_[2 * group])), V::Set(Widen(groups_[2 * group + 1])));
    });
  }

 private:
  const I4* row_;
  const F16* groups_;
  std::int64_t column_;
  std::int64_t next_;
};

/// o[r, c] = o[r, c] * correction[r] + sum_s probs[r, s] * v[s, column + c] for kUnits * 16 columns
/// c.
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
      acc[r][j] = V::Load(o + r * o_stride + j * V::kLanes) * factor;
    });
  });
  const std::int64_t ahead = std::is_same_v<T, I4> ? column / 2 : column;
  for (int i = 0; i < runs.count; ++i) {
    ValueReader<V, T, kVectors> values(runs.run[i], column, o_stride);
    const T* next = static_cast<const T*>(runs.run[i].next) + ahead;
    const float* p = probs + runs.run[i].column;
    for (const float* end = p + runs.run[i].count; p != end; ++p, next += v_stride) {
      Unroll<kLines>([&]<int j>() MANYHEAD_INLINE_LAMBDA { AskFor<kRows>(next + j * kLine); });
      F value[kVectors];
      values.Read(value);
      values.Next(v_stride);
      Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
        const F x = V::Set(p[r * kAttentionBlock]);
        Unroll<kVectors>(
            [&]<int j>() MANYHEAD_INLINE_LAMBDA { acc[r][j] = V::Fma(x, value[j], acc[r][j]); });
      });
    }
  }
  Unroll<kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      V::Store(o + r * o_stride + j * V::kLanes, acc[r][j]);
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
                                 correction + r, tile.state.o + r * tile.v_row + column,
                                 tile.v_row);
    }
  }
}

/// Columns of V in a panel: what the largest register block takes at once.
template <class V>
inline constexpr std::int64_t kPanel = kKvTile* ColumnsFor<V>(kRowBlock<V>);

/// Fetches the next lines of `ahead`: called between register blocks, which take about as long as
/// memory needs for so many.
MANYHEAD_INLINE void FetchAhead(AttentionAhead* ahead) {
  constexpr int kLines = 8, kLineBytes = 64;
  if (ahead == nullptr) return;
  for (int line = 0; line < kLines && ahead->first < ahead->count;) {
    AttentionAhead::Run& run = ahead->run[ahead->first];
    for (; line < kLines && run.next < run.end; ++line, run.next += kLineBytes) {
      __builtin_prefetch(run.next, 0, 2);
    }
    if (run.next >= run.end) ++ahead->first;
  }
}

/// The panel from `column` on of values of v_row elements: [kAttentionBlock][width], width the
/// lesser of kPanel and what is left.
template <class V>
struct Panel {
  std::int64_t width;
  std::int64_t offset;  ///< in floats from the first panel

  MANYHEAD_INLINE Panel(std::int64_t column, std::int64_t v_row)
      : width(v_row - column < kPanel<V> ? v_row - column : kPanel<V>),
        offset(column * kAttentionBlock) {}
};

/// Where `panels` hold element `column` of row `row`.
template <class V>
MANYHEAD_INLINE float* PanelAt(float* panels, std::int64_t row, std::int64_t column,
                               std::int64_t v_row) {
  const std::int64_t in_panel = column % kPanel<V>;
  const Panel<V> panel(column - in_panel, v_row);
  return panels + panel.offset + row * panel.width + in_panel;
}

/// The runs of the keys that `seen` flags in a panel of `width` columns.
inline ValueRuns PanelRuns(const float* panel, std::int64_t width, KeyBits seen) {
  ValueRuns runs;
  while (seen != 0) {
    const std::int64_t from = __builtin_ctzll(seen);
    const KeyBits gap = ~(seen >> from);
    const std::int64_t count = gap == 0 ? kAttentionBlock : __builtin_ctzll(gap);
    const float* row = panel + from * width;
    runs.run[runs.count++] = {row, row, nullptr, from, count};
    seen &= ~BitsBetween(from, from + count);
  }
  return runs;
}

/// AddRuns from panels.
template <class V>
void AddPanels(const AttentionTile& tile, const AttentionBlock& block, KeyBits seen,
               const float* correction, std::int64_t row, std::int64_t rows) {
  const std::int64_t step = RowBlockFor<V>(rows);
  for (std::int64_t column = 0; column < tile.v_row; column += kPanel<V>) {
    const Panel<V> panel(column, tile.v_row);
    const ValueRuns runs = PanelRuns(block.v_panels + panel.offset, panel.width, seen);
    const int units = static_cast<int>(panel.width / kKvTile);
    for (std::int64_t r = row; r < row + rows; r += step) {
      const std::int64_t count = row + rows - r < step ? row + rows - r : step;
      FetchAhead(block.ahead);
      AddFor<V, float>(count, units)(runs, panel.width, 0, tile.probs + r * kAttentionBlock,
                                     correction + r, tile.state.o + r * tile.v_row + column,
                                     tile.v_row);
    }
  }
}

/// Whether every value of `runs` is finite.
template <class V, class T>
bool AllFinite(const ValueRuns& runs, const AttentionBlock& block, std::int64_t v_row) {
  typename V::F sum = V::Zero();  // x * 0 is 0, or NaN where x is not finite
  for (int i = 0; i < runs.count; ++i) {
    for (std::int64_t c = 0; c < block.head_dim_v; c += V::kLanes) {
      const std::int64_t left = block.head_dim_v - c;
      const typename V::Mask real =
          V::FirstLanes(left < V::kLanes ? static_cast<int>(left) : V::kLanes);
      ValueReader<V, T, 1> values(runs.run[i], c, v_row);
      for (std::int64_t s = 0; s < runs.run[i].count; ++s) {
        typename V::F value[1];
        values.Read(value);
        values.Next(block.v_stride);
        sum = V::Fma(V::Select(real, value[0], V::Zero()), V::Zero(), sum);
      }
    }
  }
  return V::ReduceAdd(sum) == 0.0F;
}

/// The same of panels.
template <class V>
bool AllFinitePanels(const AttentionBlock& block, std::int64_t v_row) {
  typename V::F sum = V::Zero();
  for (std::int64_t column = 0; column < block.head_dim_v; column += V::kLanes) {
    const std::int64_t left = block.head_dim_v - column, in_panel = column % kPanel<V>;
    const Panel<V> panel(column - in_panel, v_row);
    const typename V::Mask real =
        V::FirstLanes(left < V::kLanes ? static_cast<int>(left) : V::kLanes);
    const float* value = block.v_panels + panel.offset + in_panel;
    for (std::int64_t s = block.begin - block.first; s < block.end - block.first; ++s) {
      const typename V::F x = V::Select(real, V::Load(value + s * panel.width), V::Zero());
      sum = V::Fma(x, V::Zero(), sum);
    }
  }
  return V::ReduceAdd(sum) == 0.0F;
}

template <class V>
void AddPanelBlock(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
                   const KeyBits* seen, bool masked) {
  if (!masked || AllFinitePanels<V>(block, tile.v_row)) {
    AddPanels<V>(tile, block, KeysOf(block), correction, 0, tile.rows);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    AddPanels<V>(tile, block, seen[r], correction, r, 1);
  }
}

/// The value part of a block; `seen` [rows] are the keys each row sees. A key that a row does not
/// see has probability 0, which would still turn its NaN or infinity into NaN: where such values
/// exist, each row runs over its own keys alone, with the same arithmetic.
template <class V, class T>
void AddBlock(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
              const KeyBits* seen, bool masked) {
  const ValueRuns runs = RunsOf<T>(block, tile.v_row, KeysOf(block));
  // The elements of int8 are finite; what its scales multiply was hidden already.
  if (!masked || std::is_same_v<T, I8> || AllFinite<V, T>(runs, block, tile.v_row)) {
    AddRuns<V, T>(tile, block.v_stride, runs, correction, 0, tile.rows);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    AddRuns<V, T>(tile, block.v_stride, RunsOf<T>(block, tile.v_row, seen[r]), correction, r, 1);
  }
}

template <class V, class T>
constexpr AttentionProducts MakeAttentionProducts() {
  AttentionProducts products{};
  products.score = &ScoreBlock<V, T>;
  products.add = &AddBlock<V, T>;
  return products;
}

}  // namespace
}  // namespace manyhead::kernels
