#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention_blocking.inl.h"
#include "kernels/attention_logits.inl.h"

/// Computes the second product of attention: rows of probabilities times rows of values as the
/// cache stores them.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

/// Value rows of consecutive keys, and the column of their probabilities in a row of `probs`.
struct ValueRun {
  const void* v;
  const void* next;    ///< the same rows of the next block
  const void* scales;  ///< scales of the first row's groups in int4
  std::int64_t column;
  std::int64_t count;
};

struct ValueRuns {
  /// The largest number of runs occurs when every other key is seen.
  ValueRun run[kAttentionBlock / 2];
  int count = 0;
};

/// Returns the number of int4 groups of a value row.
MANYHEAD_INLINE std::int64_t ValueGroups(std::int64_t v_row) {
  return (v_row + kKvGroup - 1) / kKvGroup;
}

/// Returns the runs of the keys of `block` that `seen` flags; T is the type of v.
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

/// Reads rows of values of one run as vectors of columns from `column` on.
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

/// Computes o[r, c] = o[r, c] * correction[r] + sum_s probs[r, s] * v[s, column + c] for kUnits *
/// 16 columns c.
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
      Unroll<kLines>([&]<int j>()
                         MANYHEAD_INLINE_LAMBDA { PrefetchLine<kRows>(next + j * kLine); });
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

/// Adds the values of `runs` to rows [row, row + rows) of the tile. A panel of columns of V stays
/// in L1 during all rows.
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

/// Returns true where every value of `runs` is finite.
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

/// Adds the values of a block; `seen` [rows] are the keys that each row sees. A key that a row does
/// not see has probability 0, which would still turn its NaN or infinity into NaN: where such
/// values exist, each row reads only its own keys, with the same arithmetic.
template <class V, class T>
void AddBlock(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
              const KeyBits* seen, bool masked) {
  const ValueRuns runs = RunsOf<T>(block, tile.v_row, KeysOf(block));
  // The elements of int8 are finite, and ScaleProbs has set the products with hidden scales to 0.
  if (!masked || std::is_same_v<T, I8> || AllFinite<V, T>(runs, block, tile.v_row)) {
    AddRuns<V, T>(tile, block.v_stride, runs, correction, 0, tile.rows);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    AddRuns<V, T>(tile, block.v_stride, RunsOf<T>(block, tile.v_row, seen[r]), correction, r, 1);
  }
}

}  // namespace
}  // namespace manyhead::kernels
