#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/simd.inl.h"

/// Divides the two matrix products of attention into register blocks: rows of queries times a tile
/// of keys, and rows of probabilities times rows of values.
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

/// Largest number of rows of a register block: two tiles of keys side by side where registers
/// allow.
template <class V>
inline constexpr int kRowBlock = V::kRegisters == 32    ? 12
                                 : kTileVectors<V> <= 2 ? 6
                                                        : 3;

/// Returns the greatest power of two up to `limit` of units of `vectors` that fit beside `rows`
/// rows.
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

/// Returns the columns of V in units of kKvTile.
template <class V>
constexpr int ColumnsFor(int rows) {
  return UnitsFor<V>(rows, kTileVectors<V>, 8 / kTileVectors<V> > 0 ? 8 / kTileVectors<V> : 1);
}

/// Returns the rows of equal blocks of at most kRowBlock, the last one shorter: 7 rows are 4 + 3,
/// not 6 + 1.
template <class V>
constexpr std::int64_t RowBlockFor(std::int64_t rows) {
  const std::int64_t blocks = (rows + kRowBlock<V> - 1) / kRowBlock<V>;
  return (rows + blocks - 1) / blocks;
}

/// Prefetches memory of the next block while this one is computed, a line at a time: all lines at
/// once would fill the line buffers and stop the loads that this block needs. The lines go to L2,
/// since a block of keys and values is about as large as L1. Prefetching is used only where so few
/// rows share the keys that memory, not arithmetic, is the limit.
template <int kRows>
MANYHEAD_INLINE void PrefetchLine(const void* line) {
  if constexpr (kRows <= 4) __builtin_prefetch(line, 0, 2);
}

}  // namespace
}  // namespace manyhead::kernels
