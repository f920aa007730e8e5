#pragma once

#include <cstdint>
#include <span>

#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"

/// Divides attention into items of work: the rows and keys of each item, and the order in which
/// partial results are merged. It handles numbers alone: no kernels, no tensors, no threads, no
/// scratch.
///
/// Symbols
///   K  KV heads              G  query heads that share one      T  queries of a request
///   S  its keys              R  most rows of a tile             P  splits that any row sees
///
/// A request has K * T * G rows, in K * ceil(T * G / R) tiles, and each tile reads the keys of its
/// head once: its bytes fall with R, and the items that keep threads busy fall as well. So R is as
/// large as leaves kTilesPerThread items for each thread, and one chunk at least.
///
/// When whole tiles are too few for the threads, an item is one split of the keys of one tile, and
/// there are P times as many. Each leaves a maximum, a denominator and Dv values for every row,
/// (2 + Dv) * 4 bytes that are written and read once more: little beside the kAttentionSplit
/// * (D + Dv) elements that a split reads, as long as a request has few queries.
///
/// The ends of splits depend on neither the number of threads nor the batch, and a request's parts
/// are merged by rising position, exactly as one item joins them that takes all splits. Which way
/// was taken shows in the time, not in the bits.

namespace manyhead {

/// Positions [begin, end) of keys.
struct KeySpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The keys that the rows of one query see: [0, sinks) and [begin, end), some of which may be
/// hidden or not stored.
struct SeenKeys {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// One request, and its division into work.
struct AttentionRequest {
  std::int64_t index = 0;    ///< index among the requests of the Run
  SequenceId sequence{};     ///< sequence of the cache
  std::int64_t q_begin = 0;  ///< its first query among the tokens of q
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t position = 0;      ///< position of its first query
  std::int64_t tile_rows = 0;     ///< largest number of rows of a tile
  std::int64_t tiles = 0;         ///< tiles of rows, per KV head
  std::int64_t parts = 0;         ///< splits that any row sees; see SplitOf
  std::int64_t sink_parts = 0;    ///< parts that hold sink tokens only
  std::int64_t first_split = 0;   ///< first split of the other parts
  bool split = false;             ///< an item is one part; else it takes all and writes the result
  std::int64_t first_item = 0;    ///< items of the requests before this one
  std::int64_t first_merge = 0;   ///< tiles to merge of the requests before this one
  std::int64_t parts_offset = 0;  ///< offset of its partial states, in floats

  /// Returns the split, in units of kAttentionSplit keys, that is part `part`.
  std::int64_t SplitOf(std::int64_t part) const noexcept {
    return part < sink_parts ? part : first_split + part - sink_parts;
  }
};

/// An item of work: a tile of rows of one KV head, and one part of the keys where the request is
/// split.
struct AttentionWork {
  const AttentionRequest* request = nullptr;
  std::int64_t head = 0;
  std::int64_t tile = 0;
  std::int64_t part = 0;
};

/// The work of a step.
struct AttentionWorkCounts {
  std::int64_t items = 0;
  std::int64_t merges = 0;        ///< tiles whose parts are merged after all items
  std::int64_t parts_floats = 0;  ///< floats of all partial states
  /// The first request that should have been split but had no room for it; null: none.
  const AttentionRequest* unsplit = nullptr;
  std::int64_t unsplit_floats = 0;  ///< floats that it needed
  std::int64_t unsplit_room = 0;    ///< floats that were left
};

/// Floats of a plan's scratch.
struct AttentionScratch {
  std::int64_t thread_floats = 0;  ///< floats of each thread
  std::int64_t parts_floats = 0;   ///< floats of partial states
};
/// Returns the scratch of a plan of `params`, which must be valid and resolved.
AttentionScratch AttentionScratchOf(const AttentionParams& params) noexcept;

/// Divides the requests of a plan into work. Every function depends on its arguments and the plan's
/// parameters alone.
class AttentionPartition {
 public:
  /// Creates the partition; `params` must be valid and resolved.
  explicit AttentionPartition(const AttentionParams& params) noexcept;

  /// Returns the keys that a query at `position` sees of kv_len keys, sink tokens aside; empty
  /// spans lie in 0..kv_len.
  KeySpan KeysSeen(std::int64_t position, std::int64_t kv_len) const noexcept;

  /// Returns the request of these lengths alone, before Cut places it among others.
  AttentionRequest MakeRequest(std::int64_t q_len, std::int64_t kv_len,
                               std::int64_t position) const noexcept;

  /// Places the requests of a step one after another, and decides which are split.
  AttentionWorkCounts Cut(std::span<AttentionRequest> requests) const noexcept;

  /// Returns item `item` of the requests that Cut placed.
  AttentionWork ItemAt(std::span<const AttentionRequest> requests,
                       std::int64_t item) const noexcept;
  /// Returns the tile whose parts merge `merge` joins, in ascending order.
  AttentionWork MergeAt(std::span<const AttentionRequest> requests,
                        std::int64_t merge) const noexcept;

  /// The start of a work item's partial state among the floats of all, and the number of rows that
  /// its maxima and denominators have room for.
  struct PartPlace {
    std::int64_t offset = 0;
    std::int64_t room = 0;
  };
  PartPlace PlaceOf(const AttentionWork& work) const noexcept;

  /// Returns the floats of all partial states of `request`.
  std::int64_t PartsFloats(const AttentionRequest& request) const noexcept;
  /// Returns whether a step of so many whole tiles is to split `request`.
  bool WantsSplit(std::int64_t whole_items, const AttentionRequest& request) const noexcept;

 private:
  std::int64_t threads_;
  std::int64_t kv_heads_;
  std::int64_t group_;
  std::int64_t v_row_;  ///< Dv rounded up to a K tile
  std::int64_t window_;
  std::int64_t right_;  ///< keys after the query itself that it sees
  std::int64_t sink_tokens_;
  std::int64_t room_;  ///< floats for partial states
};

}  // namespace manyhead
