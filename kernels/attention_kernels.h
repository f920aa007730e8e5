#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "manyhead/types.h"

/// Softmax attention of a tile of query rows against a block of keys, as plain function pointers.
///
/// A row is one query head at one query position; the rows of a tile share a KV head, so they share
/// each key and value that is read. Per row the arithmetic is a fixed sequence: keys in ascending
/// order, in blocks that begin at multiples of kAttentionBlock and splits that begin at multiples
/// of kAttentionSplit, each logit one chain of FMAs over head_dim. Nothing in it depends on what
/// other rows share the tile, so one prefill, any chunks of it and single decode steps give the
/// same bits.

namespace manyhead::kernels {

inline constexpr std::int64_t kAttentionRows = 192;  ///< largest number of rows of a tile
/// Largest number of rows whose logits lie in L1 at once.
inline constexpr std::int64_t kAttentionChunk = 48;
inline constexpr std::int64_t kAttentionBlock = 64;   ///< keys between two updates of the maximum
inline constexpr std::int64_t kAttentionSplit = 512;  ///< keys that share one running state
/// Largest number of rows for which keys and values are read in place and widened in the products'
/// registers. With more rows they are widened once per block into f32 scratch, which costs a store
/// and a load but serves all row blocks, and values are packed into panels, which the product reads
/// without strides or gaps.
inline constexpr std::int64_t kRowsThatWiden = 12;
inline constexpr std::int64_t kAttentionTiles = kAttentionBlock / kKvTile;

/// The running maximum, denominator and weighted sum of values of each row: [rows], [rows] and
/// [rows, v_row], aligned to 64 bytes; m and d have room for rows
/// rounded up to kKvTile.
struct AttentionState {
  float* m = nullptr;
  float* d = nullptr;
  float* o = nullptr;
};

/// The changes to the logits of a tile's rows besides the range of keys that a row sees. Null or 0:
/// no change.
struct AttentionRules {
  float softcap = 0;                          ///< x = softcap * tanh(x / softcap)
  const float* const* bias = nullptr;         ///< [rows] x += bias[r][s], s the key's position
  const std::uint8_t* const* mask = nullptr;  ///< [rows] mask[r][s] = 0 hides the key
  const float* slope = nullptr;               ///< [rows] x -= slope[r] * |position[r] - s|
  const std::int64_t* position = nullptr;     ///< [rows]
  std::int64_t sink_tokens = 0;               ///< lower positions are seen before first_key too
  /// [rows] A second rule beside first_key and sink_tokens, which must let a key through as well:
  /// policy_first_key[r] <= s, or s < policy_sinks.
  const std::int64_t* policy_first_key = nullptr;
  std::int64_t policy_sinks = 0;
};

/// Says how far `logits` goes; the changes are made in this order.
enum class AttentionStage : std::uint8_t { kScores, kCapped, kBiased };

/// A tile of query rows.
struct AttentionTile {
  std::int64_t rows = 0;                    ///< 1..kAttentionRows
  std::int64_t head_dim = 0;                ///< D
  std::int64_t v_row = 0;                   ///< Dp, a multiple of kKvTile
  const float* q = nullptr;                 ///< as pack_queries wrote it
  const std::int64_t* first_key = nullptr;  ///< [rows] the row sees positions first_key <= s
  const std::int64_t* end_key = nullptr;    ///< [rows] ... and s < end_key
  AttentionRules rules;
  /// Scratch [rows, kAttentionBlock], 64-byte aligned; `attend` uses kAttentionChunk rows of it.
  float* probs = nullptr;
  AttentionState state;
};

/// Memory that is prefetched while a block is computed, a few lines at a time: all lines at once
/// would fill the line buffers and stop the loads that the block needs.
struct AttentionPrefetch {
  struct Run {
    const char* next;
    const char* end;
  };
  Run run[kAttentionRows];
  int first = 0;  ///< index of the first run that is not fetched yet
  int count = 0;
};

/// Keys [begin, end) within one block, as tiles of kKvTile tokens; tile i holds the positions from
/// first + i * kKvTile on. The other lanes of a tile may hold any values.
struct AttentionBlock {
  const void* k[kAttentionTiles] = {};    ///< tiles of k_type as in kernels/kv_layout.h
  const void* v[kAttentionTiles] = {};    ///< first of kKvTile rows of v_type, v_stride apart
  const float* v_panels = nullptr;        ///< replaces v; written by widen_values and pack_values
  AttentionPrefetch* prefetch = nullptr;  ///< used with v_panels; may be null
  /// Tiles of a later block, to prefetch; or k and v again.
  const void* next_k[kAttentionTiles] = {};
  const void* next_v[kAttentionTiles] = {};
  /// Scales of int8 and int4 tiles, as in kernels/kv_layout.h.
  const void* k_scales[kAttentionTiles] = {};
  const void* v_scales[kAttentionTiles] = {};
  std::int64_t v_stride = 0;  ///< elements (int4: bytes); the first v_row of each row are readable
  std::int64_t tiles = 0;     ///< 1..kAttentionTiles
  std::int64_t first = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t missing = 0;    ///< bit i: position first + i is not stored; its tile may be any
  std::int64_t head_dim_v = 0;  ///< Dv
  KvType k_type = KvType::kF32;
  KvType v_type = KvType::kF32;
  /// The f32 scales of k_scales (v_scales) multiply logits (probabilities): int8, widened or not.
  bool k_scaled = false;
  bool v_scaled = false;
};

/// The two products of attention for one type of keys and values, in files of their own because
/// they take the longest to compile.
struct AttentionProducts {
  /// Writes the products of the tile's rows with the keys to tile.probs.
  void (*score)(const AttentionTile& tile, const AttentionBlock& block);
  /// Computes state.o = state.o * correction + probs * values; `seen` [rows] flags the keys that a
  /// row sees, and is used where `masked`: some row does not see some key.
  void (*add)(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
              const std::uint64_t* seen, bool masked);
};

struct AttentionKernels {
  /// Sets the state to empty: m = -inf, d = 0, o = 0.
  void (*reset)(const AttentionState& state, std::int64_t rows, std::int64_t v_row);
  /// Copies query rows, times `scale`, in the order in which `attend` reads them. `packed` must
  /// hold rows * head_dim + kKvTile elements.
  void (*pack_queries)(const float* const* q, std::int64_t rows, std::int64_t head_dim, float scale,
                       float* packed);
  /// Packs `count` <= kKvTile rows of keys of `type` (f32, f16, bf16), `stride` apart, into one
  /// tile [D][kKvTile], whose other lanes get any values.
  void (*pack_keys)(KvType type, const void* k, std::int64_t stride, std::int64_t count,
                    std::int64_t head_dim, float* tile);
  /// Widens a K tile of `type` to f32 [head_dim][kKvTile], without the scales of int8.
  void (*widen_keys)(KvType type, const void* tile, const void* scales, std::int64_t head_dim,
                     float* to);
  /// Widens a V tile of `type`, without the scales of int8, to the rows from `first` on of
  /// `panels`, which hold kAttentionBlock rows of v_row elements in an order that only the kernels
  /// know.
  void (*widen_values)(KvType type, const void* tile, const void* scales, std::int64_t v_row,
                       std::int64_t first, float* panels);
  /// Packs `count` rows of head_dim_v values of `type` (f32, f16, bf16), `stride` apart, in the
  /// same way; the rest of v_row elements is 0.
  void (*pack_values)(KvType type, const void* v, std::int64_t stride, std::int64_t count,
                      std::int64_t head_dim_v, std::int64_t v_row, std::int64_t first,
                      float* panels);
  /// Adds the keys and values of `block` to the state of each row that sees them.
  void (*attend)(const AttentionTile& tile, const AttentionBlock& block);
  /// Writes the logits of `block` to tile.probs, as far as `stage`; the state is not used. Hidden
  /// keys are -inf in kBiased and keep their value in earlier stages.
  void (*logits)(const AttentionTile& tile, const AttentionBlock& block, AttentionStage stage);
  /// Merges `part`, which holds later keys, into `total`.
  void (*merge)(const AttentionState& total, const AttentionState& part, std::int64_t rows,
                std::int64_t v_row);
  /// Computes out[r] = o / d, zeros where no key was seen; *lse[r] = m + log d. sinks[r], one more
  /// logit, joins m and d first. sinks and lse may be null.
  void (*finish)(const AttentionState& state, std::int64_t rows, std::int64_t head_dim_v,
                 std::int64_t v_row, const float* sinks, float* const* out, float* const* lse);
  /// Computes x = e^(x - lse), 0 where lse is -inf.
  void (*normalize)(float* x, std::int64_t n, float lse);
  /// Computes one row of MergeAttentionStates.
  void (*merge_rows)(const float* out_a, float lse_a, const float* out_b, float lse_b,
                     std::int64_t n, float* out, float* lse);
};

}  // namespace manyhead::kernels
