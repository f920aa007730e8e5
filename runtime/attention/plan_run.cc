#include <algorithm>
#include <cmath>

#include "runtime/attention/key_source.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/attention/tile_rows.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/clock.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

using kernels::AttentionState;
using kernels::kAttentionSplit;

/// Takes the keys of one split into `state`, from empty; returns where the next split that the rows
/// see begins, the end of keys after the last.
std::int64_t AttendSplit(const kernels::AttentionKernels& kernels, const AttentionTileRows& rows,
                         const TensorView<const float>& q, const TensorView<float>& out,
                         const AttentionKeySource& source, const kernels::AttentionTile& tile,
                         std::int64_t split) {
  kernels.reset(tile.state, tile.rows, tile.v_row);
  const std::int64_t end = std::min(rows.end(), (split + 1) * kAttentionSplit);
  kernels::AttentionAhead ahead;
  KeySpan block = source.From(rows, split * kAttentionSplit);
  while (block.begin < end) {
    const KeySpan next = source.From(rows, block.end);
    kernels::AttentionBlock loaded = source.Load(block, next);
    if (loaded.v_panels != nullptr) {
      rows.AskForEnds(q, out, block, ahead);
      loaded.ahead = &ahead;
    }
    kernels.attend(tile, loaded);
    block = next;
  }
  return block.begin;
}

/// Whether the rows see any stored key of a split.
bool SeesSplit(const AttentionTileRows& rows, const AttentionKeySource& source,
               std::int64_t split) {
  return source.From(rows, split * kAttentionSplit).begin <
         std::min(rows.end(), (split + 1) * kAttentionSplit);
}

}  // namespace

kernels::KvHeadView AttentionPlan::Impl::KeysOf(const Request& request, std::int64_t layer,
                                                std::int64_t head) const noexcept {
  if (cache_ == nullptr) return {};
  return cache_->impl().HeadView(request.sequence, layer, head);
}

/// Writes the rows' results. Keys whose probabilities are to be added up are multiplied once more:
/// only now is it known what they are divided by.
void AttentionPlan::Impl::Finish(const Tensors& tensors, const AttentionTileRows& rows,
                                 const AttentionKeySource& source,
                                 const Scratch& scratch) const noexcept {
  if (!source.has_scores()) {
    rows.Finish(tensors.out, tensors.lse, scratch.total, nullptr);
    return;
  }
  float lse[kernels::kAttentionRows];
  rows.Finish(tensors.out, tensors.lse, scratch.total, lse);
  const kernels::AttentionTile tile = rows.KernelTile(scratch.q, scratch.probs, scratch.total);
  for (KeySpan block = source.From(rows, 0), next; block.begin < rows.end(); block = next) {
    next = source.From(rows, block.end);
    const kernels::AttentionBlock keys = source.Load(block, next);
    kernels_->logits(tile, keys, kernels::AttentionStage::kBiased);
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      kernels_->normalize(scratch.probs + r * kernels::kAttentionBlock,
                          keys.tiles * kernels::kKvTile, lse[r]);
    }
    source.AddScores(block, scratch.probs, rows.rows());
  }
}

AttentionWork AttentionPlan::Impl::RunItem(const Tensors& tensors, const Scratch& scratch,
                                           std::int64_t item) const noexcept {
  const AttentionWork work = partition_.ItemAt(requests(), item);
  const auto& [placed, head, index, part] = work;
  const Request& request = *placed;
  const kernels::KvHeadView keys = KeysOf(request, tensors.layer, head);
  const AttentionTileRows rows(*this, request, head, index, keys);
  const AttentionKeySource source(*this, request, head, rows.rows(), scratch, keys);
  if (request.split && !SeesSplit(rows, source, request.SplitOf(part))) return work;
  rows.PackQueries(tensors.q, scratch.q);
  if (request.split) {
    AttendSplit(*kernels_, rows, tensors.q, tensors.out, source,
                rows.KernelTile(scratch.q, scratch.probs, PartOf(work)), request.SplitOf(part));
    return work;
  }
  const std::int64_t first = source.From(rows, 0).begin / kAttentionSplit;
  std::int64_t next = AttendSplit(*kernels_, rows, tensors.q, tensors.out, source,
                                  rows.KernelTile(scratch.q, scratch.probs, scratch.total), first);
  while (next < rows.end()) {
    next = AttendSplit(*kernels_, rows, tensors.q, tensors.out, source,
                       rows.KernelTile(scratch.q, scratch.probs, scratch.part),
                       next / kAttentionSplit);
    kernels_->merge(scratch.total, scratch.part, rows.rows(), v_row_);
  }
  Finish(tensors, rows, source, scratch);
  return work;
}

AttentionWork AttentionPlan::Impl::MergeTile(const Tensors& tensors, const Scratch& scratch,
                                             std::int64_t item) const noexcept {
  AttentionWork work = partition_.MergeAt(requests(), item);
  const Request& request = *work.request;
  const std::int64_t head = work.head;
  const kernels::KvHeadView keys = KeysOf(request, tensors.layer, head);
  const AttentionTileRows rows(*this, request, head, work.tile, keys);
  const AttentionKeySource source(*this, request, head, rows.rows(), scratch, keys);
  kernels_->reset(scratch.total, rows.rows(), v_row_);
  for (work.part = 0; work.part < request.parts; ++work.part) {
    if (!SeesSplit(rows, source, request.SplitOf(work.part))) continue;
    kernels_->merge(scratch.total, PartOf(work), rows.rows(), v_row_);
  }
  if (source.has_scores()) rows.PackQueries(tensors.q, scratch.q);
  Finish(tensors, rows, source, scratch);
  return work;
}

template <class Fn>
void AttentionPlan::Impl::RunTimed(int thread, bool timed, const Fn& item) const noexcept {
  if (!timed) {
    item();
    return;
  }
  const std::int64_t begin = SteadyNanoseconds();
  const AttentionWork work = item();
  const Request& request = *work.request;
  if (request.head_times != nullptr)
    request.head_times[thread * request.head_times_stride + work.head] +=
        SteadyNanoseconds() - begin;
}

void AttentionPlan::Impl::RunOn(Worker& worker, std::int64_t layer,
                                const TensorView<const float>& q, const TensorView<float>& out,
                                const TensorView<float>& lse) noexcept {
  MANYHEAD_DCHECK(worker.count() <= params_.threads);
  const Tensors tensors{layer, q, out, lse};
  const Scratch scratch = ScratchOf(worker.index());
  const bool timed = std::any_of(requests().begin(), requests().end(), [](const Request& request) {
    return request.head_times != nullptr;
  });
  worker.ForEach(items_, [&](std::int64_t i) {
    RunTimed(worker.index(), timed, [&] { return RunItem(tensors, scratch, i); });
  });
  if (merges_ == 0) return;
  worker.ForEach(merges_, [&](std::int64_t i) {
    RunTimed(worker.index(), timed, [&] { return MergeTile(tensors, scratch, i); });
  });
}

void AttentionPlan::Impl::RunOn(Worker& worker, std::int64_t layer, const float* q, float* out,
                                float* lse) noexcept {
  const std::int64_t heads = params_.num_heads, d = params_.head_dim, dv = params_.head_dim_v;
  RunOn(worker, layer, {q, 0, heads * d, d}, {out, 0, heads * dv, dv}, {lse, 0, heads, 1});
}

void AttentionPlan::Impl::WeightsOn(Worker& worker, LogitStage stage, float* weights) noexcept {
  const Scratch scratch = ScratchOf(worker.index());
  const std::int64_t tiles = num_requests_ == 0 ? 0 : requests_[0].tiles;  // all alike
  const auto kernel_stage = stage == LogitStage::kScores   ? kernels::AttentionStage::kScores
                            : stage == LogitStage::kCapped ? kernels::AttentionStage::kCapped
                                                           : kernels::AttentionStage::kBiased;
  const std::int64_t kv_len = tensors_->kv_len;
  worker.ForEach(num_requests_ * params_.num_kv_heads * tiles, [&](std::int64_t i) {
    const Request& request = requests_[static_cast<std::size_t>(i / tiles / params_.num_kv_heads)];
    const std::int64_t head = i / tiles % params_.num_kv_heads;
    const kernels::KvHeadView keys;
    const AttentionTileRows rows(*this, request, head, i % tiles, keys);
    const AttentionKeySource source(*this, request, head, rows.rows(), scratch, keys);
    rows.PackQueries(tensors_->q, scratch.q);
    const kernels::AttentionTile tile = rows.KernelTile(scratch.q, scratch.probs, scratch.total);
    const auto row_of = [&](std::int64_t r) {
      return ((request.index * params_.num_heads + rows.head(r)) * request.q_len + rows.query(r)) *
             kv_len;
    };
    // Bias and mask may end with the valid tokens; what lies beyond is hidden.
    const bool hides = kernel_stage == kernels::AttentionStage::kBiased;
    const std::int64_t end = hides ? request.kv_len : kv_len;
    for (std::int64_t s = 0; s < end; s += kernels::kAttentionBlock) {
      const KeySpan block{s, std::min(end, s + kernels::kAttentionBlock)};
      kernels_->logits(tile, source.LoadKeys(block), kernel_stage);
      for (std::int64_t r = 0; r < rows.rows(); ++r) {
        std::copy_n(tile.probs + r * kernels::kAttentionBlock, block.end - block.begin,
                    weights + row_of(r) + s);
      }
    }
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      std::fill_n(weights + row_of(r) + end, kv_len - end, -HUGE_VALF);
    }
    if (stage != LogitStage::kProbs) return;
    const TensorView<float>& lse = tensors_->lse;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      kernels_->normalize(
          weights + row_of(r), kv_len,
          lse.data[request.index * lse.batch_stride + rows.query(r) * lse.token_stride +
                   rows.head(r) * lse.head_stride]);
    }
  });
}

}  // namespace manyhead
