#include <algorithm>
#include <cstddef>
#include <new>

#include "runtime/attention/plan_impl.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionChunk;
using kernels::kAttentionRows;
using kernels::kAttentionSplit;
using kernels::kKvTile;

constexpr std::align_val_t kAlignment{64};

/// Decode steps of so many queries at once may split; batches above have items enough.
constexpr std::int64_t kSplitQueries = 4;
constexpr std::int64_t kMaxPartsBytes = 64 << 20;
/// Tiles per thread above which they may be larger than a chunk: fewer reads of keys and values,
/// but an end at which other threads wait longer.
constexpr std::int64_t kTilesPerThread = 16;

/// Rows per tile for a request with `rows` rows per KV head.
std::int64_t TileRowsOf(const AttentionParams& params, std::int64_t rows) noexcept {
  std::int64_t tile = kAttentionRows;
  const std::int64_t wanted = kTilesPerThread * params.threads;
  while (tile > kAttentionChunk && params.num_kv_heads * CeilDiv(rows, tile) < wanted) {
    tile -= kAttentionChunk;
  }
  return tile;
}

/// Floats of the partial states of one KV head's rows in one split, values in rows of `v_row`.
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
    constexpr std::int64_t kFloatBytes = sizeof(float);
    // Wide enough for any input: 2^16 heads * 2^22 splits * 2^13 floats.
    scratch.parts_floats =
        std::min(params.num_kv_heads * splits * PartFloatsOf(v_row, rows, TileRowsOf(params, rows)),
                 kMaxPartsBytes / kFloatBytes);
  }
  return scratch;
}

bool SameAttention(Isa a, Isa b) noexcept {
  return KernelsFor(a).attention == KernelsFor(b).attention;
}

void AttentionPlan::Impl::FreeScratch::operator()(float* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

AttentionPlan::Impl::Impl(const AttentionParams& params)
    : params_(params),
      kernels_(KernelsFor(*params.isa).attention),
      v_row_(RoundUp(params.head_dim_v, kKvTile)),
      right_(*params.window_right),
      requests_(static_cast<std::size_t>(params.max_q_len)) {
  const AttentionScratch scratch = AttentionScratchOf(params);
  thread_floats_ = scratch.thread_floats;
  parts_floats_ = scratch.parts_floats;
  const std::int64_t floats = params.threads * thread_floats_ + parts_floats_;
  scratch_.reset(static_cast<float*>(
      ::operator new(static_cast<std::size_t>(floats * kFloatBytes), kAlignment)));
}

std::int64_t AttentionPlan::Impl::TileRows(std::int64_t rows) const noexcept {
  return TileRowsOf(params_, rows);
}

std::int64_t AttentionPlan::Impl::PartFloats(std::int64_t rows,
                                             std::int64_t tile_rows) const noexcept {
  return PartFloatsOf(v_row_, rows, tile_rows);
}

kernels::AttentionState AttentionPlan::Impl::PartOf(const Request& request, std::int64_t head,
                                                    std::int64_t tile,
                                                    std::int64_t part) const noexcept {
  const std::int64_t rows = request.q_len * group();
  const std::int64_t room = RoundUp(std::min(rows, request.tile_rows), kKvTile);
  const std::int64_t head_floats = PartFloats(rows, request.tile_rows);
  float* m = scratch_.get() + params_.threads * thread_floats_ + request.parts_offset +
             (head * request.parts + part) * head_floats + tile * (head_floats / request.tiles);
  return {m, m + room, m + 2 * room};
}

AttentionPlan::Impl::Scratch AttentionPlan::Impl::ScratchOf(int thread) const noexcept {
  float* next = scratch_.get() + thread * thread_floats_;
  const auto take = [&next](std::int64_t floats) {
    float* taken = next;
    next += RoundUp(floats, kKvTile);
    return taken;
  };
  Scratch scratch{};
  scratch.q = take(kAttentionRows * params_.head_dim + kKvTile);
  scratch.probs = take(kAttentionRows * kAttentionBlock);
  scratch.k = take(kAttentionBlock * params_.head_dim);
  scratch.v = take(kAttentionBlock * v_row_);
  for (kernels::AttentionState* state : {&scratch.total, &scratch.part}) {
    state->m = take(kAttentionRows);
    state->d = take(kAttentionRows);
    state->o = take(kAttentionRows * v_row_);
  }
  return scratch;
}

}  // namespace manyhead
