#include "runtime/attention/run.h"

#include <algorithm>

namespace manyhead {
namespace {

using kernels::kAttentionSplit;

/// Adds the keys of one split to `state`, which it empties first; returns the start of the next
/// split that the rows see, or the end of the keys after the last.
std::int64_t AttendSplit(const kernels::AttentionKernels& kernels, const AttentionTileRows& rows,
                         const TensorView<const float>& q, const TensorView<float>& out,
                         const AttentionKeySource& source, const kernels::AttentionTile& tile,
                         std::int64_t split) {
  kernels.reset(tile.state, tile.rows, tile.v_row);
  const std::int64_t end = std::min(rows.end(), (split + 1) * kAttentionSplit);
  kernels::AttentionPrefetch prefetch;
  KeySpan block = source.From(rows, split * kAttentionSplit);
  while (block.begin < end) {
    const KeySpan next = source.From(rows, block.end);
    kernels::AttentionBlock loaded = source.Load(block, next);
    if (loaded.v_panels != nullptr) {
      rows.PrefetchEnds(q, out, block, prefetch);
      loaded.prefetch = &prefetch;
    }
    kernels.attend(tile, loaded);
    block = next;
  }
  return block.begin;
}

/// Returns true where the rows see any stored key of a split.
bool SeesSplit(const AttentionTileRows& rows, const AttentionKeySource& source,
               std::int64_t split) {
  return source.From(rows, split * kAttentionSplit).begin <
         std::min(rows.end(), (split + 1) * kAttentionSplit);
}

}  // namespace

// Keys whose probabilities are added up are multiplied a second time: their divisor is only known
// now.
void AttentionRun::Finish(const AttentionTileRows& rows,
                          const AttentionKeySource& source) const noexcept {
  if (!source.has_scores()) {
    rows.Finish(tensors_.out, tensors_.lse, scratch_.total, nullptr);
    return;
  }
  float lse[kernels::kAttentionRows];
  rows.Finish(tensors_.out, tensors_.lse, scratch_.total, lse);
  const kernels::AttentionTile tile = rows.KernelTile(scratch_.q, scratch_.probs, scratch_.total);
  for (KeySpan block = source.From(rows, 0), next; block.begin < rows.end(); block = next) {
    next = source.From(rows, block.end);
    const kernels::AttentionBlock keys = source.Load(block, next);
    setup_.kernels->logits(tile, keys, kernels::AttentionStage::kBiased);
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      setup_.kernels->normalize(scratch_.probs + r * kernels::kAttentionBlock,
                                keys.tiles * kernels::kKvTile, lse[r]);
    }
    source.AddScores(block, scratch_.probs, rows.rows());
  }
}

AttentionWork AttentionRun::RunItem(std::int64_t item) const noexcept {
  const AttentionWork work = setup_.partition.ItemAt(requests_.all(), item);
  const auto& [placed, head, index, part] = work;
  const AttentionRequest& request = *placed;
  const kernels::KvHeadView keys = requests_.KeysOf(request, tensors_.layer, head);
  const AttentionTileRows rows(setup_, requests_.bias(), request, head, index, keys);
  const AttentionKeySource source(setup_, requests_, request, head, rows.rows(), scratch_, keys);
  if (request.split && !SeesSplit(rows, source, request.SplitOf(part))) return work;
  rows.PackQueries(tensors_.q, scratch_.q);
  const kernels::AttentionKernels& kernels = *setup_.kernels;
  if (request.split) {
    AttendSplit(kernels, rows, tensors_.q, tensors_.out, source,
                rows.KernelTile(scratch_.q, scratch_.probs, parts_.PartOf(work)),
                request.SplitOf(part));
    return work;
  }
  const std::int64_t first = source.From(rows, 0).begin / kAttentionSplit;
  std::int64_t next =
      AttendSplit(kernels, rows, tensors_.q, tensors_.out, source,
                  rows.KernelTile(scratch_.q, scratch_.probs, scratch_.total), first);
  while (next < rows.end()) {
    next = AttendSplit(kernels, rows, tensors_.q, tensors_.out, source,
                       rows.KernelTile(scratch_.q, scratch_.probs, scratch_.part),
                       next / kAttentionSplit);
    kernels.merge(scratch_.total, scratch_.part, rows.rows(), setup_.v_row);
  }
  Finish(rows, source);
  return work;
}

AttentionWork AttentionRun::MergeTile(std::int64_t item) const noexcept {
  AttentionWork work = setup_.partition.MergeAt(requests_.all(), item);
  const AttentionRequest& request = *work.request;
  const std::int64_t head = work.head;
  const kernels::KvHeadView keys = requests_.KeysOf(request, tensors_.layer, head);
  const AttentionTileRows rows(setup_, requests_.bias(), request, head, work.tile, keys);
  const AttentionKeySource source(setup_, requests_, request, head, rows.rows(), scratch_, keys);
  setup_.kernels->reset(scratch_.total, rows.rows(), setup_.v_row);
  for (work.part = 0; work.part < request.parts; ++work.part) {
    if (!SeesSplit(rows, source, request.SplitOf(work.part))) continue;
    setup_.kernels->merge(scratch_.total, parts_.PartOf(work), rows.rows(), setup_.v_row);
  }
  if (source.has_scores()) rows.PackQueries(tensors_.q, scratch_.q);
  Finish(rows, source);
  return work;
}

void AttentionRun::On(Worker& worker, const AttentionHeadTimes& times) const noexcept {
  const AttentionRequest* const first = requests_.all().data();
  worker.ForEach(requests_.items(), [&](std::int64_t i) {
    times.Run(worker.index(), first, [&] { return RunItem(i); });
  });
  if (requests_.merges() == 0) return;
  worker.ForEach(requests_.merges(), [&](std::int64_t i) {
    times.Run(worker.index(), first, [&] { return MergeTile(i); });
  });
}

}  // namespace manyhead
