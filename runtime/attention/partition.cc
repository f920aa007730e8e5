#include "runtime/attention/partition.h"

#include <algorithm>

#include "kernels/attention_kernels.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionChunk;
using kernels::kAttentionRows;
using kernels::kAttentionSplit;
using kernels::kKvTile;

/// Number of items per thread below which the keys are split: dynamic scheduling then balances the
/// load.
constexpr std::int64_t kItemsPerThread = 4;
/// Largest number of queries of a step that may split keys; larger batches have enough items.
constexpr std::int64_t kSplitQueries = 4;
constexpr std::int64_t kMaxPartsBytes = 64 << 20;
/// Number of tiles per thread above which they may be larger than a chunk: keys and values are read
/// less often, but threads wait longer at the end.
constexpr std::int64_t kTilesPerThread = 16;

std::int64_t TileRowsOf(std::int64_t kv_heads, std::int64_t threads, std::int64_t rows) noexcept {
  std::int64_t tile = kAttentionRows;
  const std::int64_t wanted = kTilesPerThread * threads;
  while (tile > kAttentionChunk && kv_heads * CeilDiv(rows, tile) < wanted) tile -= kAttentionChunk;
  return tile;
}

/// Returns the floats of the partial states of one KV head's rows in one split, values in rows of
/// `v_row`.
std::int64_t PartFloatsOf(std::int64_t v_row, std::int64_t rows, std::int64_t tile_rows) noexcept {
  const std::int64_t most = std::min(rows, tile_rows);
  return CeilDiv(rows, tile_rows) * (2 * RoundUp(most, kKvTile) + most * v_row);
}

}  // namespace

AttentionScratch AttentionScratchOf(const AttentionParams& params) noexcept {
  const std::int64_t d = params.head_dim, v_row = RoundUp(params.head_dim_v, kKvTile);
  AttentionScratch scratch;
  scratch.thread_floats = RoundUp(kAttentionRows * d, kKvTile) + kKvTile +
                          kAttentionRows * kAttentionBlock + kAttentionBlock * (d + v_row) +
                          2 * kAttentionRows * (2 + v_row);
  const std::int64_t splits = CeilDiv(params.max_kv_len, kAttentionSplit);
  if (params.threads > 1 && splits > 1) {
    const std::int64_t group = params.num_heads / params.num_kv_heads;
    const std::int64_t rows = group * std::min(params.max_q_len, kSplitQueries);
    const std::int64_t tile_rows = TileRowsOf(params.num_kv_heads, params.threads, rows);
    constexpr std::int64_t kFloatBytes = sizeof(float);
    // std::int64_t suffices for any input: 2^16 heads * 2^22 splits * 2^13 floats.
    scratch.parts_floats =
        std::min(params.num_kv_heads * splits * PartFloatsOf(v_row, rows, tile_rows),
                 kMaxPartsBytes / kFloatBytes);
  }
  return scratch;
}

AttentionPartition::AttentionPartition(const AttentionParams& params) noexcept
    : threads_(params.threads),
      kv_heads_(params.num_kv_heads),
      group_(params.num_heads / params.num_kv_heads),
      v_row_(RoundUp(params.head_dim_v, kKvTile)),
      window_(params.window),
      right_(*params.window_right),
      sink_tokens_(params.num_sink_tokens),
      room_(AttentionScratchOf(params).parts_floats) {}

KeySpan AttentionPartition::KeysSeen(std::int64_t position, std::int64_t kv_len) const noexcept {
  std::int64_t begin = 0, end = kv_len;
  if (right_ < kv_len - position) end = std::max<std::int64_t>(0, position + right_ + 1);
  if (window_ > 0 && window_ <= position) begin = position - window_ + 1;
  end = std::min(end, kv_len);
  return {std::min(begin, end), end};
}

AttentionRequest AttentionPartition::MakeRequest(std::int64_t q_len, std::int64_t kv_len,
                                                 std::int64_t position) const noexcept {
  AttentionRequest request;
  request.q_len = q_len;
  request.kv_len = kv_len;
  request.position = position;
  request.tile_rows = TileRowsOf(kv_heads_, threads_, q_len * group_);
  request.tiles = CeilDiv(q_len * group_, request.tile_rows);
  const std::int64_t splits = CeilDiv(kv_len, kAttentionSplit);
  request.first_split = KeysSeen(position, kv_len).begin / kAttentionSplit;
  request.sink_parts = CeilDiv(std::min(sink_tokens_, kv_len), kAttentionSplit);
  if (request.sink_parts >= request.first_split) request.first_split = request.sink_parts = 0;
  request.parts = request.sink_parts + splits - request.first_split;
  return request;
}

std::int64_t AttentionPartition::PartsFloats(const AttentionRequest& request) const noexcept {
  return kv_heads_ * request.parts *
         PartFloatsOf(v_row_, request.q_len * group_, request.tile_rows);
}

bool AttentionPartition::WantsSplit(std::int64_t whole_items,
                                    const AttentionRequest& request) const noexcept {
  return threads_ > 1 && whole_items < kItemsPerThread * threads_ && request.parts > 1;
}

AttentionWorkCounts AttentionPartition::Cut(std::span<AttentionRequest> requests) const noexcept {
  std::int64_t whole_items = 0;
  for (const AttentionRequest& request : requests) whole_items += kv_heads_ * request.tiles;
  AttentionWorkCounts work;
  for (AttentionRequest& request : requests) {
    const std::int64_t tiles = kv_heads_ * request.tiles, room = room_ - work.parts_floats;
    request.first_item = work.items;
    request.first_merge = work.merges;
    request.parts_offset = work.parts_floats;
    const bool wanted = WantsSplit(whole_items, request);
    const std::int64_t floats = wanted ? PartsFloats(request) : 0;
    request.split = wanted && floats <= room;
    if (wanted && !request.split && work.unsplit == nullptr) {
      work.unsplit = &request;
      work.unsplit_floats = floats;
      work.unsplit_room = room;
    }
    work.parts_floats += request.split ? floats : 0;
    work.items += request.split ? tiles * request.parts : tiles;
    work.merges += request.split ? tiles : 0;
  }
  return work;
}

AttentionWork AttentionPartition::ItemAt(std::span<const AttentionRequest> requests,
                                         std::int64_t item) const noexcept {
  const auto after = std::upper_bound(
      requests.begin(), requests.end(), item,
      [](std::int64_t i, const AttentionRequest& request) { return i < request.first_item; });
  const AttentionRequest& request = *(after - 1);
  const std::int64_t parts = request.split ? request.parts : 1;
  const std::int64_t local = item - request.first_item;
  // Late tiles see the most keys: they are handed out first, so that short tiles balance the end.
  return {&request, local / parts / request.tiles,
          request.tiles - 1 - local / parts % request.tiles, local % parts};
}

AttentionWork AttentionPartition::MergeAt(std::span<const AttentionRequest> requests,
                                          std::int64_t merge) const noexcept {
  // Requests without tiles to merge have the same number as the next one that has them, which is
  // the last of equals; upper_bound finds it.
  const auto after = std::upper_bound(
      requests.begin(), requests.end(), merge,
      [](std::int64_t i, const AttentionRequest& request) { return i < request.first_merge; });
  const AttentionRequest& request = *(after - 1);
  const std::int64_t local = merge - request.first_merge;
  return {&request, local / request.tiles, local % request.tiles, 0};
}

AttentionPartition::PartPlace AttentionPartition::PlaceOf(
    const AttentionWork& work) const noexcept {
  const AttentionRequest& request = *work.request;
  const std::int64_t rows = request.q_len * group_;
  const std::int64_t head_floats = PartFloatsOf(v_row_, rows, request.tile_rows);
  return {request.parts_offset + (work.head * request.parts + work.part) * head_floats +
              work.tile * (head_floats / request.tiles),
          RoundUp(std::min(rows, request.tile_rows), kKvTile)};
}

}  // namespace manyhead
