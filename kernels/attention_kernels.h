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

inline constexpr std::int64_t kAttentionRows = 192;   ///< most rows of a tile
inline constexpr std::int64_t kAttentionChunk = 48;   ///< most rows whose logits lie in L1 at once
inline constexpr std::int64_t kAttentionBlock = 64;   ///< keys between two updates of the maximum
inline constexpr std::int64_t kAttentionSplit = 512;  ///< keys that share one running state
/// Up to so many rows, keys and values are better read in place and widened in the products'
/// registers; above, once per block into f32 scratch, which costs a store and a load but serves all
/// row blocks, and values in panels, which leave neither strides nor breaks to the product.
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

/// What changes the logits of a tile's rows besides the range of keys a row sees. Null or 0:
/// nothing.
struct AttentionRules {
  float softcap = 0;                          ///< x = softcap * tanh(x / softcap)
  const float* const* bias = nullptr;         ///< [rows] x += bias[r][s], s the key's position
  const std::uint8_t* const* mask = nullptr;  ///< [rows] mask[r][s] = 0 hides the key
  const float* slope = nullptr;               ///< [rows] x -= slope[r] * |position[r] - s|
  const std::int64_t* position = nullptr;     ///< [rows]
  std::int64_t sink_tokens = 0;               ///< positions below it are seen before first_key too
  /// [rows] A second rule beside first_key and sink_tokens, which must let a key through as well:
  /// kept_first[r] <= s, or s < kept_sinks.
  const std::int64_t* kept_first = nullptr;
  std::int64_t kept_sinks = 0;
};

/// How far `logits` goes; the order in which logits are changed.
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

/// Memory to fetch while a block is computed, a few lines at a time: all at once they would fill
/// the line buffers and stop the loads that the block needs.
struct AttentionAhead {
  struct Run {
    const char* next;
    const char* end;
  };
  Run run[kAttentionRows];
  int first = 0;  ///< runs before it are fetched
  int count = 0;
};

/// Keys [begin, end) within one block, as tiles of kKvTile tokens; tile i holds the positions from
/// first + i * kKvTile on. The rest of a tile may hold anything.
struct AttentionBlock {
  const void* k[kAttentionTiles] = {};  ///< tiles of k_type as in kernels/kv_layout.h
  const void* v[kAttentionTiles] = {};  ///< first of kKvTile rows of v_type, v_stride apart
  const float* v_panels = nullptr;      ///< instead of v, as widen_values and pack_values write
  AttentionAhead* ahead = nullptr;      ///< of use with v_panels; may be null
  /// Tiles that a later block will ask for, to fetch meanwhile; or k and v again.
  const void* next_k[kAttentionTiles] = {};
  const void* next_v[kAttentionTiles] = {};
  /// Of int8 and int4 tiles, as in kernels/kv_layout.h.
  const void* k_scales[kAttentionTiles] = {};
  const void* v_scales[kAttentionTiles] = {};
  std::int64_t v_stride = 0;  ///< elements (int4: bytes); the first v_row of each row are readable
  std::int64_t tiles = 0;     ///< 1..kAttentionTiles
  std::int64_t first = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t missing = 0;    ///< bit i: position first + i is not there; its tile may be any
  std::int64_t head_dim_v = 0;  ///< Dv
  KvType k_type = KvType::kF32;
  KvType v_type = KvType::kF32;
  /// The f32 scales of k_scales (v_scales) multiply logits (probabilities): int8, widened or not.
  bool k_scaled = false;
  bool v_scaled = false;
};

/// The two products of attention for one type of keys and values: files of their own, since they
/// take the longest to compile.
struct AttentionProducts {
  /// Products of the tile's rows with the keys, to tile.probs.
  void (*score)(const AttentionTile& tile, const AttentionBlock& block);
  /// state.o = state.o * correction + probs * values; `seen` [rows] flags the keys that a row sees,
  /// of use where `masked`: some row does not see some key.
  void (*add)(const AttentionTile& tile, const AttentionBlock& block, const float* correction,
              const std::uint64_t* seen, bool masked);
};

struct AttentionKernels {
  /// An empty state: m = -inf, d = 0, o = 0.
  void (*reset)(const AttentionState& state, std::int64_t rows, std::int64_t v_row);
  /// Brings query rows, times `scale`, into the order in which `attend` reads them. `packed` has
  /// room for rows * head_dim + kKvTile elements.
  void (*pack_queries)(const float* const* q, std::int64_t rows, std::int64_t head_dim, float scale,
                       float* packed);
  /// `count` <= kKvTile rows of keys of `type` (f32, f16, bf16), `stride` apart, to one tile
  /// [D][kKvTile], whose other lanes hold anything.
  void (*pack_keys)(KvType type, const void* k, std::int64_t stride, std::int64_t count,
                    std::int64_t head_dim, float* tile);
  /// A K tile of `type` to f32 [head_dim][kKvTile], but for the scales of int8.
  void (*widen_keys)(KvType type, const void* tile, const void* scales, std::int64_t head_dim,
                     float* to);
  /// A V tile of `type`, but for the scales of int8, to the rows from `first` on of `panels`, which
  /// hold kAttentionBlock rows of v_row elements in an order that only the kernels know.
  void (*widen_values)(KvType type, const void* tile, const void* scales, std::int64_t v_row,
                       std::int64_t first, float* panels);
  /// The same for `count` rows of head_dim_v values of `type` (f32, f16, bf16), `stride` apart; the
  /// rest of v_row elements is 0.
  void (*pack_values)(KvType type, const void* v, std::int64_t stride, std::int64_t count,
                      std::int64_t head_dim_v, std::int64_t v_row, std::int64_t first,
                      float* panels);
  /// Takes the keys and values of `block` into the state of each row that sees them.
  void (*attend)(const AttentionTile& tile, const AttentionBlock& block);
  /// Leaves the logits of `block` in tile.probs, as far as `stage`; the state is not used. Hidden
  /// keys are -inf in kBiased and show their value before.
  void (*logits)(const AttentionTile& tile, const AttentionBlock& block, AttentionStage stage);
  /// Joins `part`, which holds later keys, to `total`.
  void (*merge)(const AttentionState& total, const AttentionState& part, std::int64_t rows,
                std::int64_t v_row);
  /// out[r] = o / d, zeros where no key was seen; *lse[r] = m + log d. sinks[r], one more logit,
  /// joins m and d first. sinks and lse may be null.
  void (*finish)(const AttentionState& state, std::int64_t rows, std::int64_t head_dim_v,
                 std::int64_t v_row, const float* sinks, float* const* out, float* const* lse);
  /// x = e^(x - lse), 0 where lse is -inf.
  void (*normalize)(float* x, std::int64_t n, float lse);
  /// One row of MergeAttentionStates.
  void (*merge_rows)(const float* out_a, float lse_a, const float* out_b, float lse_b,
                     std::int64_t n, float* out, float* lse);
};

}  // namespace manyhead::kernels
