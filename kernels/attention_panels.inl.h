#pragma once

#include <cstdint>

#include "kernels/attention_values.inl.h"

/// Computes the second product of attention over values that were widened and packed into panels of
/// columns, which is faster where many rows share them.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

/// Columns of V in a panel: as many as the largest register block handles at once.
template <class V>
inline constexpr std::int64_t kPanel = kKvTile* ColumnsFor<V>(kRowBlock<V>);

/// Prefetches the next lines of `prefetch`. It is called between register blocks, which take about
/// as long as memory needs for these lines.
MANYHEAD_INLINE void PrefetchNext(AttentionPrefetch* prefetch) {
  constexpr int kLines = 8, kLineBytes = 64;
  if (prefetch == nullptr) return;
  for (int line = 0; line < kLines && prefetch->first < prefetch->count;) {
    AttentionPrefetch::Run& run = prefetch->run[prefetch->first];
    for (; line < kLines && run.next < run.end; ++line, run.next += kLineBytes) {
      __builtin_prefetch(run.next, 0, 2);
    }
    if (run.next >= run.end) ++prefetch->first;
  }
}

/// The panel of values of v_row elements that begins at `column`: [kAttentionBlock][width], width
/// the lesser of kPanel and the remaining columns.
template <class V>
struct Panel {
  std::int64_t width;
  std::int64_t offset;  ///< in f32 numbers from the first panel

  MANYHEAD_INLINE Panel(std::int64_t column, std::int64_t v_row)
      : width(v_row - column < kPanel<V> ? v_row - column : kPanel<V>),
        offset(column * kAttentionBlock) {}
};

/// Returns the address of element `column` of row `row` in `panels`.
template <class V>
MANYHEAD_INLINE float* PanelAt(float* panels, std::int64_t row, std::int64_t column,
                               std::int64_t v_row) {
  const std::int64_t in_panel = column % kPanel<V>;
  const Panel<V> panel(column - in_panel, v_row);
  return panels + panel.offset + row * panel.width + in_panel;
}

/// Returns the runs of the keys that `seen` flags in a panel of `width` columns.
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

/// Does the work of AddRuns on panels.
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
      PrefetchNext(block.prefetch);
      AddFor<V, float>(count, units)(runs, panel.width, 0, tile.probs + r * kAttentionBlock,
                                     correction + r, tile.state.o + r * tile.v_row + column,
                                     tile.v_row);
    }
  }
}

/// Returns true where every value of the panels is finite.
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

}  // namespace
}  // namespace manyhead::kernels
