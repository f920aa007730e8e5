#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/attention_panels.inl.h"
#include "kernels/attention_products.inl.h"
#include "kernels/functions.inl.h"
#include "kernels/simd.inl.h"
#include "kernels/transpose.inl.h"

/// Computes one step of online softmax over a block of keys, and the operations around it.
///
/// Cost of a block of n keys for R rows: 2 R n (D + Dv) flops in the products; n R exponentials; Dp
/// R loads and stores of the running sum. Read from memory: the block's K and V, once per tile.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

template <class V>
void Reset(const AttentionState& state, std::int64_t rows, std::int64_t v_row) {
  for (std::int64_t r = 0; r < rows; r += V::kLanes) {
    V::Store(state.m + r, V::Set(-kInfinity));
    V::Store(state.d + r, V::Zero());
  }
  for (std::int64_t i = 0; i < rows * v_row; i += V::kLanes) V::Store(state.o + i, V::Zero());
}

template <class V>
void PackQueries(const float* const* q, std::int64_t rows, std::int64_t head_dim, float scale,
                 float* packed) {
  for (std::int64_t chunk = 0; chunk < rows; chunk += kAttentionChunk) {
    const std::int64_t end = rows - chunk < kAttentionChunk ? rows : chunk + kAttentionChunk;
    const std::int64_t step = RowBlockFor<V>(end - chunk);
    for (std::int64_t first = chunk; first < end; first += step) {
      const std::int64_t count = end - first < step ? end - first : step;
      InterleaveRows(q + first, count, head_dim, scale, packed + first * head_dim);
    }
  }
}

template <class V, class T>
void PackKeysFrom(const void* k, std::int64_t stride, std::int64_t count, std::int64_t head_dim,
                  float* tile) {
  StoreTile(TileRows<T>(static_cast<const T*>(k), stride, count), head_dim, tile);
}

template <class V>
void PackKeys(KvType type, const void* k, std::int64_t stride, std::int64_t count,
              std::int64_t head_dim, float* tile) {
  constexpr decltype(&PackKeysFrom<V, float>) kFns[] = {
      &PackKeysFrom<V, float>, &PackKeysFrom<V, F16>, &PackKeysFrom<V, Bf16>};
  kFns[static_cast<int>(type)](k, stride, count, head_dim, tile);
}

template <class V, class T>
void PackValuesFrom(const void* values, std::int64_t stride, std::int64_t count,
                    std::int64_t head_dim_v, std::int64_t v_row, std::int64_t first,
                    float* panels) {
  const T* v = static_cast<const T*>(values);
  for (std::int64_t s = first; s < first + count; ++s, v += stride) {
    for (std::int64_t c = 0; c < v_row; c += V::kLanes) {
      const std::int64_t left = head_dim_v - c;
      V::Store(PanelAt<V>(panels, s, c, v_row),
               left >= V::kLanes
                   ? V::Load(v + c)
                   : V::LoadTail(v + (left > 0 ? c : 0), left > 0 ? static_cast<int>(left) : 0));
    }
  }
}

template <class V>
void PackValues(KvType type, const void* v, std::int64_t stride, std::int64_t count,
                std::int64_t head_dim_v, std::int64_t v_row, std::int64_t first, float* panels) {
  constexpr decltype(&PackValuesFrom<V, float>) kFns[] = {
      &PackValuesFrom<V, float>, &PackValuesFrom<V, F16>, &PackValuesFrom<V, Bf16>};
  kFns[static_cast<int>(type)](v, stride, count, head_dim_v, v_row, first, panels);
}

template <class V, class T>
void WidenKeysFrom(const void* tile, const void* scales, std::int64_t head_dim, float* to) {
  KeyReader<V, T, 1> keys(&tile, &scales);
  for (std::int64_t d = 0; d < head_dim; ++d, to += kKvTile) {
    if (d % kKvGroup == 0) keys.Enter(d);
    Unroll<kTileVectors<V>>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      V::Store(to + j * V::kLanes, keys.template Load<j>(d));
    });
  }
}

template <class V>
void WidenKeys(KvType type, const void* tile, const void* scales, std::int64_t head_dim,
               float* to) {
  constexpr decltype(&WidenKeysFrom<V, float>) kFns[] = {
      &WidenKeysFrom<V, float>, &WidenKeysFrom<V, F16>, &WidenKeysFrom<V, Bf16>,
      &WidenKeysFrom<V, I8>, &WidenKeysFrom<V, I4>};
  kFns[static_cast<int>(type)](tile, scales, head_dim, to);
}

template <class V, class T>
void WidenValuesFrom(const void* tile, const void* scales, std::int64_t v_row, std::int64_t first,
                     float* panels) {
  const std::int64_t groups = ValueGroups(v_row);
  const std::int64_t stride = std::is_same_v<T, I4> ? groups * kKvGroup / 2 : v_row;
  for (std::int64_t s = 0; s < kKvTile; ++s) {
    const T* row = static_cast<const T*>(tile) + s * stride;
    const F16* group = static_cast<const F16*>(scales) + s * 2 * groups;
    const ValueRun run{row, row, group, 0, 1};
    for (std::int64_t column = 0; column < v_row; column += kPanel<V>) {
      const Panel<V> panel(column, v_row);
      float* to = panels + panel.offset + (first + s) * panel.width;
      for (std::int64_t c = column; c < column + panel.width; c += V::kLanes, to += V::kLanes) {
        typename V::F value[1];
        ValueReader<V, T, 1>(run, c, v_row).Read(value);
        V::Store(to, value[0]);
      }
    }
  }
}

template <class V>
void WidenValues(KvType type, const void* tile, const void* scales, std::int64_t v_row,
                 std::int64_t first, float* panels) {
  constexpr decltype(&WidenValuesFrom<V, float>) kFns[] = {
      &WidenValuesFrom<V, float>, &WidenValuesFrom<V, F16>, &WidenValuesFrom<V, Bf16>,
      &WidenValuesFrom<V, I8>, &WidenValuesFrom<V, I4>};
  kFns[static_cast<int>(type)](tile, scales, v_row, first, panels);
}

/// Returns the largest logit of a row; NaN counts as -inf here and has its effect in the
/// exponential.
template <class V>
MANYHEAD_INLINE float RowMax(const float* logits, std::int64_t columns) {
  constexpr std::int64_t kTwo = kKvTile / 2;  // two independent chains
  typename V::F even = V::Set(-kInfinity), odd = even;
  for (std::int64_t c = 0; c < columns; c += kKvTile) {
    for (std::int64_t i = 0; i < kTwo; i += V::kLanes) {
      even = V::Max(V::Load(logits + c + i), even);
      if constexpr (V::kLanes <= kTwo) odd = V::Max(V::Load(logits + c + kTwo + i), odd);
    }
  }
  return V::ReduceMax(V::Max(odd, even));
}

/// Turns a row's logits into exponentials and returns their sum.
template <class V>
MANYHEAD_INLINE float ExpRow(float* row, std::int64_t columns, float max) {
  constexpr int kVectors = kTileVectors<V>;
  typename V::F sum[kVectors];
  for (auto& x : sum) x = V::Zero();
  const typename V::F shift = V::Set(max);
  for (std::int64_t c = 0; c < columns; c += kKvTile) {
    Unroll<kVectors>([&]<int j>() MANYHEAD_INLINE_LAMBDA {
      const typename V::F p = ExpNonPositive<V>(V::Load(row + c + j * V::kLanes) - shift);
      V::Store(row + c + j * V::kLanes, p);
      sum[j] = sum[j] + p;
    });
  }
  for (int width = kVectors / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sum[j] = sum[j] + sum[j + width];
  }
  return V::ReduceAdd(sum[0]);
}

/// Computes m = max(m, block_max); shift is the number to subtract from logits: m, or 0 where no
/// key has been seen, since -inf - -inf is NaN; correction = e^(old m - new m) is exactly 1 where m
/// stays.
template <class V>
void UpdateMax(const float* block_max, std::int64_t rows, float* m, float* shift,
               float* correction) {
  using F = typename V::F;
  for (std::int64_t r = 0; r < rows; r += V::kLanes) {
    const F old_m = V::Load(m + r);
    const F new_m = V::Max(V::Load(block_max + r), old_m);
    const F finite = V::Select(V::Less(V::Set(-kInfinity), new_m), new_m, V::Zero());
    V::Store(m + r, new_m);
    V::Store(shift + r, finite);
    V::Store(correction + r, ExpNonPositive<V>(old_m - finite));
  }
}

/// Multiplies probabilities by the scales of int8 values; 0 where hidden, whose scale may be NaN.
template <class V>
void ScaleProbs(const void* const* scales, KeyBits seen, std::int64_t columns, float* row) {
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    const float* scale = static_cast<const float*>(scales[c / kKvTile]) + c % kKvTile;
    const typename V::F scaled = V::Load(row + c) * V::Load(scale);
    V::Store(row + c, V::Select(V::LanesOf(seen >> c), scaled, V::Zero()));
  }
}

/// The products of each KvType, indexed by the type.
using ProductsByType = const AttentionProducts* const*;

MANYHEAD_INLINE const AttentionProducts& ProductsOf(ProductsByType products, KvType type) {
  return *products[static_cast<int>(type)];
}

template <class V, ProductsByType kProducts>
void Logits(const AttentionTile& tile, const AttentionBlock& block, AttentionStage stage) {
  for (std::int64_t first = 0; first < tile.rows; first += kAttentionChunk) {
    AttentionTile chunk = ChunkOf(tile, first);
    chunk.probs += first * kAttentionBlock;
    ProductsOf(kProducts, block.k_type).score(chunk, block);
    for (std::int64_t r = 0; r < chunk.rows; ++r) FinishLogits<V>(chunk, block, r, stage);
  }
}

/// Converts the rows' products to logits, hides the keys that they do not see and finds their
/// maxima. Returns true where some row does not see some key of the block.
template <class V>
bool FinishRows(const AttentionTile& tile, const AttentionBlock& block, KeyBits* seen,
                float* block_max) {
  const std::int64_t columns = block.tiles * kKvTile;
  const bool plain = IsPlain(tile, block);
  bool masked = false;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    if (!plain) {
      seen[r] = FinishLogits<V>(tile, block, r, AttentionStage::kBiased);
      masked |= seen[r] != KeysOf(block);
    }
    block_max[r] = RowMax<V>(tile.probs + r * kAttentionBlock, columns);
  }
  return masked;
}

/// Does the work of `attend` for up to kAttentionChunk rows.
template <class V, ProductsByType kProducts>
void AttendChunk(const AttentionTile& tile, const AttentionBlock& block) {
  alignas(64) float block_max[kAttentionChunk], shift[kAttentionChunk], correction[kAttentionChunk],
      sum[kAttentionChunk];
  KeyBits seen[kAttentionChunk];  // keys that FinishLogits found visible
  const std::int64_t columns = block.tiles * kKvTile;
  ProductsOf(kProducts, block.k_type).score(tile, block);
  for (std::int64_t r = 0; r < tile.rows; r += V::kLanes) {  // lanes beyond the rows stay empty
    V::Store(block_max + r, V::Set(-kInfinity));
    V::Store(sum + r, V::Zero());
  }
  const bool masked = FinishRows<V>(tile, block, seen, block_max);
  UpdateMax<V>(block_max, tile.rows, tile.state.m, shift, correction);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.probs + r * kAttentionBlock;
    sum[r] = ExpRow<V>(row, columns, shift[r]);
    if (block.v_scaled) ScaleProbs<V>(block.v_scales, seen[r], columns, row);
  }
  for (std::int64_t r = 0; r < tile.rows; r += V::kLanes) {
    V::Store(tile.state.d + r,
             V::Fma(V::Load(tile.state.d + r), V::Load(correction + r), V::Load(sum + r)));
  }
  if (block.v_panels != nullptr) return AddPanelBlock<V>(tile, block, correction, seen, masked);
  ProductsOf(kProducts, block.v_type).add(tile, block, correction, seen, masked);
}

template <class V, ProductsByType kProducts>
void Attend(const AttentionTile& tile, const AttentionBlock& block) {
  if (tile.rows <= kAttentionChunk) return AttendChunk<V, kProducts>(tile, block);
  for (std::int64_t first = 0; first < tile.rows; first += kAttentionChunk) {
    const AttentionTile chunk = ChunkOf(tile, first);
    const AttentionBlock keys = SeenOf(chunk, block);
    if (keys.begin < keys.end) AttendChunk<V, kProducts>(chunk, keys);
  }
}

template <class V>
void Merge(const AttentionState& total, const AttentionState& part, std::int64_t rows,
           std::int64_t v_row) {
  using F = typename V::F;
  alignas(64) float old_weight[kAttentionRows], new_weight[kAttentionRows];
  for (std::int64_t r = 0; r < rows; r += V::kLanes) {
    const F old_m = V::Load(total.m + r), new_m = V::Load(part.m + r);
    const F max = V::Max(new_m, old_m);
    const F finite = V::Select(V::Less(V::Set(-kInfinity), max), max, V::Zero());
    const F a = ExpNonPositive<V>(old_m - finite), b = ExpNonPositive<V>(new_m - finite);
    V::Store(total.m + r, max);
    V::Store(total.d + r, V::Fma(V::Load(part.d + r), b, V::Load(total.d + r) * a));
    V::Store(old_weight + r, a);
    V::Store(new_weight + r, b);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const F a = V::Set(old_weight[r]), b = V::Set(new_weight[r]);
    float* o = total.o + r * v_row;
    const float* add = part.o + r * v_row;
    for (std::int64_t c = 0; c < v_row; c += V::kLanes) {
      V::Store(o + c, V::Fma(V::Load(add + c), b, V::Load(o + c) * a));
    }
  }
}

template <class V>
void Finish(const AttentionState& state, std::int64_t rows, std::int64_t head_dim_v,
            std::int64_t v_row, const float* sinks, float* const* out, float* const* lse) {
  using F = typename V::F;
  for (std::int64_t r = 0; r < rows; ++r) {
    float m = state.m[r], d = state.d[r], weight = 1;
    if (sinks != nullptr && sinks[r] > -kInfinity) {
      const float max = m < sinks[r] ? sinks[r] : m;  // NaN logits only have an effect in d
      alignas(64) float e[V::kLanes] = {m - max, sinks[r] - max};
      V::Store(e, ExpNonPositive<V>(V::Load(e)));
      weight = e[0];
      d = d * weight + e[1];
      m = max;
    }
    const F factor = V::Set(d == 0.0F ? 1.0F : weight / d);  // no key seen: o is 0
    const float* o = state.o + r * v_row;
    std::int64_t c = 0;
    for (; c + V::kLanes <= head_dim_v; c += V::kLanes) {
      V::Store(out[r] + c, V::Load(o + c) * factor);
    }
    if (c < head_dim_v) {
      V::StoreTail(out[r] + c, V::Load(o + c) * factor, static_cast<int>(head_dim_v - c));
    }
    if (lse != nullptr) *lse[r] = d == 0.0F ? -kInfinity : m + logf(d);
  }
}

template <class V>
void Normalize(float* x, std::int64_t n, float lse) {
  using F = typename V::F;
  const F shift = V::Set(lse > -kInfinity || lse != lse ? lse : 0.0F);
  for (std::int64_t i = 0; i < n; i += V::kLanes) {
    const int left = n - i < V::kLanes ? static_cast<int>(n - i) : V::kLanes;
    V::StoreTail(x + i, Exp<V>(V::LoadTail(x + i, left) - shift), left);
  }
}

template <class V>
void MergeRows(const float* out_a, float lse_a, const float* out_b, float lse_b, std::int64_t n,
               float* out, float* lse) {
  using F = typename V::F;
  const float max = lse_a < lse_b ? lse_b : lse_a;
  // Both states are empty: zeros, which no weight changes.
  if (max == -kInfinity) lse_a = lse_b = 0;
  alignas(64) float e[V::kLanes] = {};
  if (max != -kInfinity) e[0] = lse_a - max, e[1] = lse_b - max;
  V::Store(e, ExpNonPositive<V>(V::Load(e)));
  const float d = e[0] + e[1];
  const F a = V::Set(e[0] / d), b = V::Set(e[1] / d);
  for (std::int64_t i = 0; i < n; i += V::kLanes) {
    const int left = n - i < V::kLanes ? static_cast<int>(n - i) : V::kLanes;
    const F x = V::LoadTail(out_a + i, left), y = V::LoadTail(out_b + i, left);
    V::StoreTail(out + i, V::Fma(x, a, y * b), left);
  }
  *lse = max == -kInfinity ? max : max + logf(d);
}

/// Makes the table of one instruction set.
template <class V, ProductsByType kProducts>
constexpr AttentionKernels MakeAttentionKernels() {
  AttentionKernels table{};
  table.reset = &Reset<V>;
  table.pack_queries = &PackQueries<V>;
  table.pack_keys = &PackKeys<V>;
  table.pack_values = &PackValues<V>;
  table.widen_keys = &WidenKeys<V>;
  table.widen_values = &WidenValues<V>;
  table.attend = &Attend<V, kProducts>;
  table.logits = &Logits<V, kProducts>;
  table.merge = &Merge<V>;
  table.finish = &Finish<V>;
  table.normalize = &Normalize<V>;
  table.merge_rows = &MergeRows<V>;
  return table;
}

}  // namespace
}  // namespace manyhead::kernels
