#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/attention_products.inl.h"
#include "kernels/simd.inl.h"

/// One step of online softmax over a block of keys, and the operations around it.
///
/// Cost of a block of n keys for R rows: 2 R n (D + Dv) flops in the products; n R exponentials; Dp
/// R loads and stores of the running sum. Read from memory: the block's K and V, once per tile.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

inline constexpr float kInfinity = __builtin_inff();

template <class V>
void Reset(const AttentionState& state, std::int64_t rows, std::int64_t v_row) {
  for (std::int64_t r = 0; r < kAttentionRows; ++r) state.m[r] = -kInfinity;
  for (std::int64_t r = 0; r < kAttentionRows; ++r) state.d[r] = 0;
  for (std::int64_t i = 0; i < rows * v_row; i += V::kLanes) V::Store(state.o + i, V::Zero());
}

template <class V>
void PackQueries(const float* const* q, std::int64_t rows, std::int64_t head_dim, float scale,
                 float* packed) {
  const std::int64_t step = RowBlockFor<V>(rows);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = rows - first < step ? rows - first : step;
    float* out = packed + first * head_dim;
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t d = 0; d < head_dim; ++d) out[d * count + r] = q[first + r][d] * scale;
    }
  }
}

template <class V>
void PackKeys(const float* k, std::int64_t stride, std::int64_t count, std::int64_t head_dim,
              float* tile) {
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t s = 0; s < kKvTile; ++s) {
      tile[d * kKvTile + s] = s < count ? k[s * stride + d] : 0.0F;
    }
  }
}

template <class V>
void PackValues(const float* v, std::int64_t stride, std::int64_t count, std::int64_t head_dim_v,
                std::int64_t v_row, float* rows) {
  for (std::int64_t s = 0; s < count; ++s, v += stride, rows += v_row) {
    for (std::int64_t c = 0; c < v_row; c += V::kLanes) {
      const std::int64_t left = head_dim_v - c;
      V::Store(rows + c, left >= V::kLanes ? V::Load(v + c)
                                           : V::LoadTail(v + (left > 0 ? c : 0),
                                                         left > 0 ? static_cast<int>(left) : 0));
    }
  }
}

template <class V, class T>
void WidenFrom(const void* from, std::int64_t n, float* to) {
  const T* source = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < n; i += V::kLanes) V::Store(to + i, V::Load(source + i));
}

template <class V>
void WidenTo(KvType type, const void* from, std::int64_t n, float* to) {
  constexpr decltype(&WidenFrom<V, float>) kFns[] = {&WidenFrom<V, float>, &WidenFrom<V, F16>,
                                                     &WidenFrom<V, Bf16>};
  kFns[static_cast<int>(type)](from, n, to);
}

/// Turns the logits that a row does not see into -inf; columns are keys from block.first on.
template <class V>
void MaskRow(std::int64_t first_key, std::int64_t end_key, const AttentionBlock& block,
             float* logits) {
  for (std::int64_t c = 0; c < block.tiles * kKvTile; c += V::kLanes) {
    // Lanes [from, to) stay.
    const std::int64_t from = first_key - block.first - c, to = end_key - block.first - c;
    if (from <= 0 && to >= V::kLanes) continue;
    const int low = from <= 0 ? 0 : from < V::kLanes ? static_cast<int>(from) : V::kLanes;
    const int high = to <= 0 ? 0 : to < V::kLanes ? static_cast<int>(to) : V::kLanes;
    const typename V::F hidden = V::Set(-kInfinity);
    const typename V::F below = V::Select(V::FirstLanes(high), V::Load(logits + c), hidden);
    V::Store(logits + c, V::Select(V::FirstLanes(low), hidden, below));
  }
}

/// The largest logit of a row; NaN counts as -inf here and enters through its exponential.
template <class V>
MANYHEAD_INLINE float RowMax(const float* logits, std::int64_t columns) {
  constexpr std::int64_t kTwo = kKvTile / 2;  // two chains
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

/// m = max(m, block_max); shift is what to subtract from logits: m, or 0 where no key was seen yet,
/// since -inf - -inf is NaN; correction = e^(old m - new m) is exactly 1 where m stays.
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

template <class V>
bool IsMasked(const AttentionTile& tile, const AttentionBlock& block) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    if (tile.first_key[r] > block.begin || tile.end_key[r] < block.end) return true;
  }
  return false;
}

template <class V>
void Score(const AttentionTile& tile, const AttentionBlock& block) {
  constexpr decltype(&ScoreBlock<V, float>) kFns[] = {&ScoreBlock<V, float>, &ScoreBlock<V, F16>,
                                                      &ScoreBlock<V, Bf16>};
  kFns[static_cast<int>(block.k_type)](tile, block);
}

template <class V>
void Add(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
         bool masked) {
  constexpr decltype(&AddBlock<V, float>) kFns[] = {&AddBlock<V, float>, &AddBlock<V, F16>,
                                                    &AddBlock<V, Bf16>};
  kFns[static_cast<int>(block.v_type)](tile, block, correction, masked);
}

template <class V>
void Attend(const AttentionTile& tile, const AttentionBlock& block) {
  alignas(64) float block_max[kAttentionRows], shift[kAttentionRows], correction[kAttentionRows],
      sum[kAttentionRows];
  const bool masked = IsMasked<V>(tile, block);
  const std::int64_t columns = block.tiles * kKvTile;
  const bool ragged = masked || block.begin > block.first || block.end < block.first + columns;
  Score<V>(tile, block);
  for (std::int64_t r = 0; r < tile.rows; r += V::kLanes) {  // lanes beyond the rows stay empty
    V::Store(block_max + r, V::Set(-kInfinity));
    V::Store(sum + r, V::Zero());
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.probs + r * kAttentionBlock;
    if (ragged) {
      const std::int64_t first = tile.first_key[r], end = tile.end_key[r];
      MaskRow<V>(first > block.begin ? first : block.begin, end < block.end ? end : block.end,
                 block, row);
    }
    block_max[r] = RowMax<V>(row, columns);
  }
  UpdateMax<V>(block_max, tile.rows, tile.state.m, shift, correction);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    sum[r] = ExpRow<V>(tile.probs + r * kAttentionBlock, columns, shift[r]);
  }
  for (std::int64_t r = 0; r < tile.rows; r += V::kLanes) {
    V::Store(tile.state.d + r,
             V::Fma(V::Load(tile.state.d + r), V::Load(correction + r), V::Load(sum + r)));
  }
  Add<V>(tile, block, correction, masked);
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
            std::int64_t v_row, float* const* out, float* const* lse) {
  using F = typename V::F;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float d = state.d[r];
    const F divisor = V::Set(d == 0.0F ? 1.0F : d);  // no key seen: o is 0
    const float* o = state.o + r * v_row;
    std::int64_t c = 0;
    for (; c + V::kLanes <= head_dim_v; c += V::kLanes) {
      V::Store(out[r] + c, V::Load(o + c) / divisor);
    }
    if (c < head_dim_v) {
      V::StoreTail(out[r] + c, V::Load(o + c) / divisor, static_cast<int>(head_dim_v - c));
    }
    if (lse != nullptr) *lse[r] = d == 0.0F ? -kInfinity : state.m[r] + logf(d);
  }
}

/// The table of one instruction set.
template <class V>
constexpr AttentionKernels MakeAttentionKernels() {
  return {&Reset<V>,   &PackQueries<V>, &PackKeys<V>, &PackValues<V>,
          &WidenTo<V>, &Attend<V>,      &Merge<V>,    &Finish<V>};
}

}  // namespace
}  // namespace manyhead::kernels
