#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/functions.inl.h"
#include "kernels/simd.inl.h"

/// Changes a row of logits between the two products: scales of int8 keys, soft-cap, bias, ALiBi,
/// and hiding the keys that the row does not see.
///
/// A row of a block is 64 numbers in L1. Each change is a pass over its 4 to 16 vectors, taken only
/// where the plan asks for it: beside 64 (D + Dv) FMAs of the products, a branch per row is nothing
/// and a pass costs 1 to 2 % (the soft-cap, whose tanh takes about 20 operations, 8 %).

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

inline constexpr float kInfinity = __builtin_inff();

/// Flags of the keys of a block, bit i for position block.first + i.
using KeyBits = std::uint64_t;
static_assert(kAttentionBlock == 64);

/// Returns the bits [from, to), both limited to 0..64.
MANYHEAD_INLINE KeyBits BitsBetween(std::int64_t from, std::int64_t to) {
  if (from < 0) from = 0;
  if (to > kAttentionBlock) to = kAttentionBlock;
  if (from >= to) return 0;
  return (~KeyBits{0} >> (kAttentionBlock - to)) & (~KeyBits{0} << from);
}

/// Returns the keys that a block holds.
MANYHEAD_INLINE KeyBits KeysOf(const AttentionBlock& block) {
  return BitsBetween(block.begin - block.first, block.end - block.first) & ~block.missing;
}

/// Returns bit i: mask[i] != 0, i < n <= 64.
inline KeyBits MaskBits(const std::uint8_t* mask, std::int64_t n) {
  constexpr std::uint64_t kLow = 0x7f7f7f7f7f7f7f7fU, kHigh = 0x8080808080808080U;
  KeyBits bits = 0;
  for (std::int64_t i = 0; i < n; i += 8) {
    std::uint64_t bytes = 0;
    __builtin_memcpy(&bytes, mask + i, static_cast<std::size_t>(n - i < 8 ? n - i : 8));
    // The high bits of bytes that are not 0.
    const std::uint64_t set = (((bytes & kLow) + kLow) | bytes) & kHigh;
    // The product moves bit 8 j to bit 56 + j.
    bits |= ((set >> 7) * 0x0102040810204080U >> 56) << i;
  }
  return bits;
}

/// Returns the keys of a block that row r sees, except those that a bias of -inf hides.
inline KeyBits KeysSeen(const AttentionTile& tile, const AttentionBlock& block, std::int64_t r) {
  const std::int64_t end = tile.end_key[r] - block.first;
  KeyBits seen = BitsBetween(tile.first_key[r] - block.first, end);
  const std::int64_t sinks = tile.rules.sink_tokens - block.first;
  if (sinks > 0) seen |= BitsBetween(0, sinks < end ? sinks : end);
  if (tile.rules.policy_first_key != nullptr) {
    seen &= BitsBetween(tile.rules.policy_first_key[r] - block.first, kAttentionBlock) |
            BitsBetween(0, tile.rules.policy_sinks - block.first);
  }
  seen &= KeysOf(block);
  if (tile.rules.mask == nullptr || seen == 0) return seen;
  return seen & MaskBits(tile.rules.mask[r] + block.first, block.end - block.first);
}

/// Returns up to kAttentionChunk rows of the tile from `first` on.
inline AttentionTile ChunkOf(const AttentionTile& tile, std::int64_t first) {
  AttentionTile part = tile;
  part.rows = tile.rows - first < kAttentionChunk ? tile.rows - first : kAttentionChunk;
  part.q += first * tile.head_dim;
  part.first_key += first;
  part.end_key += first;
  if (tile.rules.bias != nullptr) part.rules.bias += first;
  if (tile.rules.mask != nullptr) part.rules.mask += first;
  if (tile.rules.slope != nullptr) part.rules.slope += first;
  if (tile.rules.position != nullptr) part.rules.position += first;
  if (tile.rules.policy_first_key != nullptr) part.rules.policy_first_key += first;
  part.state.m += first;
  part.state.d += first;
  part.state.o += first * tile.v_row;
  return part;
}

/// Returns the block without the keys at its end that no row sees; empty where none is seen.
inline AttentionBlock SeenOf(const AttentionTile& tile, const AttentionBlock& block) {
  std::int64_t first = tile.first_key[0], end = tile.end_key[0];
  for (std::int64_t r = 1; r < tile.rows; ++r) {
    if (tile.first_key[r] < first) first = tile.first_key[r];
    if (tile.end_key[r] > end) end = tile.end_key[r];
  }
  AttentionBlock seen = block;
  if (end < block.end) seen.end = end;
  if (first >= block.end && tile.rules.sink_tokens <= block.begin) seen.end = block.begin;
  if (seen.end > seen.begin) seen.tiles = (seen.end - seen.first + kKvTile - 1) / kKvTile;
  return seen;
}

/// Returns true where products are logits already: nothing changes them, and all rows see whole
/// tiles.
inline bool IsPlain(const AttentionTile& tile, const AttentionBlock& block) {
  const AttentionRules& rules = tile.rules;
  if (rules.softcap > 0 || rules.bias != nullptr || rules.mask != nullptr ||
      rules.slope != nullptr || rules.policy_first_key != nullptr || block.k_scaled ||
      block.v_scaled || block.missing != 0 || block.begin != block.first ||
      block.end != block.first + block.tiles * kKvTile) {
    return false;
  }
  bool all = true;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    all &= tile.first_key[r] <= block.begin && block.end <= tile.end_key[r];
  }
  return all;
}

template <class V>
void ScaleRow(const void* const* scales, std::int64_t columns, float* row) {
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    const float* scale = static_cast<const float*>(scales[c / kKvTile]) + c % kKvTile;
    V::Store(row + c, V::Load(row + c) * V::Load(scale));
  }
}

template <class V>
void CapRow(float cap, std::int64_t columns, float* row) {
  const typename V::F factor = V::Set(cap), inverse = V::Set(1.0F / cap);
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    V::Store(row + c, factor * Tanh<V>(V::Load(row + c) * inverse));
  }
}

/// Adds the bias of the keys that the block holds, and returns the keys that -inf hides.
template <class V>
KeyBits BiasRow(const float* bias, const AttentionBlock& block, float* row) {
  KeyBits hidden = 0;
  const std::int64_t columns = block.end - block.first;
  const typename V::F lowest = V::Set(-3.40282347e38F);
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    const float* from = bias + block.first + c;
    const std::int64_t left = columns - c;
    const typename V::F x =
        left >= V::kLanes ? V::Load(from) : V::LoadTail(from, static_cast<int>(left));
    hidden |= V::Bits(V::Less(x, lowest)) << c;
    V::Store(row + c, V::Load(row + c) + x);
  }
  return hidden;
}

/// Subtracts the ALiBi term; `distance` is counted from the row's position to the block's first
/// key.
template <class V>
void AlibiRow(float slope, std::int64_t distance, std::int64_t columns, float* row) {
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    const typename V::F from = V::Set(static_cast<float>(distance - c)) - V::Iota();
    const typename V::F away = V::Max(from, V::Zero() - from);
    V::Store(row + c, V::Fnma(V::Set(slope), away, V::Load(row + c)));
  }
}

/// Sets every logit to -inf whose bit is not set.
template <class V>
void HideRow(KeyBits seen, std::int64_t columns, float* row) {
  for (std::int64_t c = 0; c < columns; c += V::kLanes) {
    const KeyBits lanes = seen >> c;
    V::Store(row + c, V::Select(V::LanesOf(lanes), V::Load(row + c), V::Set(-kInfinity)));
  }
}

/// Converts row r of tile.probs from products to logits, as far as `stage`; returns the keys that
/// it sees.
template <class V>
KeyBits FinishLogits(const AttentionTile& tile, const AttentionBlock& block, std::int64_t r,
                     AttentionStage stage) {
  const AttentionRules& rules = tile.rules;
  const std::int64_t columns = block.tiles * kKvTile;
  float* row = tile.probs + r * kAttentionBlock;
  if (block.k_scaled) ScaleRow<V>(block.k_scales, columns, row);
  if (rules.softcap > 0 && stage != AttentionStage::kScores) CapRow<V>(rules.softcap, columns, row);
  if (stage != AttentionStage::kBiased) return KeysOf(block);
  KeyBits seen = KeysSeen(tile, block, r);
  if (rules.bias != nullptr) seen &= ~BiasRow<V>(rules.bias[r], block, row);
  if (rules.slope != nullptr) {
    AlibiRow<V>(rules.slope[r], rules.position[r] - block.first, columns, row);
  }
  if (seen != BitsBetween(0, columns)) HideRow<V>(seen, columns, row);
  return seen;
}

}  // namespace
}  // namespace manyhead::kernels
