#pragma once

#include <cstdint>
#include <span>

#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"

/// How attention is cut into work: which rows and which keys each item has, and in which order
/// partial results are merged. Numbers alone: no kernels, no tensors, no threads, no scratch.
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

/// What the rows of one query see: keys [0, sinks) and [begin, end), some of which may be hidden or
/// not stored.
struct SeenKeys {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// One request, and how it is cut.
struct AttentionRequest {
  std::int64_t index = 0;    ///< among the requests of the Run
  SequenceId sequence{};     ///< of the cache
  std::int64_t q_begin = 0;  ///< its first query among the tokens of q
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t position = 0;      ///< of its first query
  std::int64_t tile_rows = 0;     ///< most rows of a tile
  std::int64_t tiles = 0;         ///< of rows, per KV head
  std::int64_t parts = 0;         ///< splits that any row sees; see SplitOf
  std::int64_t sink_parts = 0;    ///< those of the parts that hold sink tokens only
  std::int64_t first_split = 0;   ///< of the other parts
  bool split = false;             ///< an item is one part; else it takes all and writes the result
  std::int64_t first_item = 0;    ///< items of the requests before this one
  std::int64_t first_merge = 0;   ///< tiles to merge of the requests before this one
  std::int64_t parts_offset = 0;  ///< of its partial states, in floats

  /// Returns the split, in units of kAttentionSplit keys, that is part `part`.
  std::int64_t SplitOf(std::int64_t part) const noexcept {
    return part < sink_parts ? part : first_split + part - sink_parts;
  }
};

/// What an item is: a tile of rows of one KV head, and one part of the keys where the request is
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
  std::int64_t parts_floats = 0;  ///< of all partial states
  /// The first request that was to be split and had no room for it; null: none.
  const AttentionRequest* unsplit = nullptr;
  std::int64_t unsplit_floats = 0;  ///< that it needed
  std::int64_t unsplit_room = 0;    ///< that were left
};

/// Floats of a plan's scratch.
struct AttentionScratch {
  std::int64_t thread_floats = 0;  ///< of each thread
  std::int64_t parts_floats = 0;   ///< of partial states
};
/// Returns the scratch of a plan of `params`, which are valid and resolved.
AttentionScratch AttentionScratchOf(const AttentionParams& params) noexcept;

/// Cuts the requests of a plan. Every function depends on its arguments and the plan's parameters
/// alone.
class AttentionPartition {
 public:
  /// `params` are valid and resolved.
  explicit AttentionPartition(const AttentionParams& params) noexcept;

  /// Returns what a query at `position` sees of kv_len keys, sink tokens aside; empty spans lie in
  /// 0..kv_len.
  KeySpan KeysSeen(std::int64_t position, std::int64_t kv_len) const noexcept;

  /// Returns the request of these lengths alone, not yet among others.
  AttentionRequest MakeRequest(std::int64_t q_len, std::int64_t kv_len,
                               std::int64_t position) const noexcept;

  /// Places the requests of a step one after the other, and decides which are split.
  AttentionWorkCounts Cut(std::span<AttentionRequest> requests) const noexcept;

  /// Returns what item `item` of the requests that Cut placed is.
  AttentionWork ItemAt(std::span<const AttentionRequest> requests,
                       std::int64_t item) const noexcept;
  /// Returns which tile merge `merge` joins the parts of, in rising order of them.
  AttentionWork MergeAt(std::span<const AttentionRequest> requests,
                        std::int64_t merge) const noexcept;

  /// Returns where the partial state of a work item begins among the floats of all, and how many
  /// rows its maxima and its denominators have room for.
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
