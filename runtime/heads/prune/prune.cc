#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "manyhead/prune.h"
#include "runtime/heads/ablate/effects_scorer.h"
#include "runtime/platform/errors.h"

/// Chooses the KV heads whose removal harms a text least.

namespace manyhead {
namespace {

constexpr const char* kName = "PruneHeads";
constexpr std::int64_t kLeastTokens = 256;

using Nll = EffectsScorer::Nll;

/// Returns true where the loss of predicting token i + 1 takes no part in the choice.
bool HeldOut(std::size_t i) { return i / 64 % 3 == 2; }

PruneLoss MeanLoss(const Nll& nll) {
  double sum[2] = {}, count[2] = {};
  for (std::size_t i = 0; i < nll.size(); ++i) {
    sum[HeldOut(i)] += nll[i];
    ++count[HeldOut(i)];
  }
  return {(sum[0] + sum[1]) / (count[0] + count[1]), sum[0] / count[0], sum[1] / count[1]};
}

class Search {
 public:
  Search(const Model& model, std::span<const TokenId> ids, const PruneOptions& options)
      : config_(model.config()), model_(model), ids_(ids), options_(options) {}

  Result<Pruning> Run();

 private:
  Status CheckOptions();
  Status MeasureBefore();
  Status MeasureEffects();
  std::vector<HeadEdits> EditsOf(std::span<const KvHeadId> removed) const;
  Result<bool> Fits(const std::vector<KvHeadId>& removed);
  std::vector<KvHeadId> Take(std::size_t* next, std::int64_t most) const;
  Status Choose();
  Status ChooseUniform();
  std::int64_t Most() const {
    return options_.max_kv_heads == 0 ? INT64_MAX : options_.max_kv_heads;
  }
  std::int64_t KvHeadsOf(std::int64_t layer) const {
    return config_.layers[static_cast<std::size_t>(layer)].num_kv_heads;
  }
  void Tell() {
    ++done_;
    if (options_.text.on_progress) options_.text.on_progress(std::min(done_, total_), total_);
  }

  const ModelConfig& config_;
  const Model& model_;
  std::span<const TokenId> ids_;
  PruneOptions options_;
  std::optional<EffectsScorer> scorer_;
  Pruning result_;
  std::int64_t done_ = 0, total_ = 0;
};

Status Search::CheckOptions() {
  if (!(options_.max_rise >= 0) || !std::isfinite(options_.max_rise))
    return InvalidArgument(kName, "max_rise = ", options_.max_rise,
                           "; expected a finite number, at least 0");
  if (options_.max_kv_heads < 0)
    return InvalidArgument(kName, "max_kv_heads = ", options_.max_kv_heads,
                           "; expected at least 0");
  std::int64_t most = 0, least = INT64_MAX;
  for (const LayerConfig& layer : config_.layers) {
    most = std::max(most, layer.num_kv_heads);
    least = std::min(least, layer.num_kv_heads);
    if (layer.num_kv_heads > 1) total_ += layer.num_kv_heads;
  }
  if (most == 1 || (options_.uniform && least == 1))
    return InvalidArgument(kName, most == 1 ? "every" : "some",
                           " layer has 1 KV head; expected at least 2, of "
                           "which one stays");
  total_ *= 2;  // each head alone, and about as many passes with several
  return CompleteTextOptions(kName, model_, kLeastTokens, &ids_, &options_.text);
}

Status Search::MeasureBefore() {
  const Result<Nll> nll = scorer_->Score({});
  if (!nll.ok()) return nll.status();
  if (nll->empty()) return IoError(kName, "interrupted before anything was known");
  result_.before = result_.after = MeanLoss(*nll);
  result_.tokens = options_.text.tokens;
  for (std::size_t i = 0; i < nll->size(); ++i) result_.held_out_tokens += HeldOut(i);
  return Status();
}

Status Search::MeasureEffects() {
  while (!scorer_->done() && !result_.interrupted) {
    const std::size_t l = scorer_->layer();
    const Result<bool> entered = scorer_->EnterLayer();
    if (!entered.ok()) return entered.status();
    result_.interrupted = !*entered;
    const LayerConfig& layer = config_.layers[l];
    const std::int64_t group = layer.num_heads / layer.num_kv_heads;
    for (std::int64_t h = 0; layer.num_kv_heads > 1 && h < layer.num_kv_heads; ++h) {
      if (result_.interrupted) break;
      const Result<Nll> nll = scorer_->ScoreFrom(HeadsOff(config_, l, h * group, group));
      if (!nll.ok()) return nll.status();
      result_.interrupted = nll->empty();
      if (nll->empty()) break;
      result_.effects.push_back({{static_cast<std::int64_t>(l), h}, MeanLoss(*nll).fit});
      Tell();
    }
    scorer_->LeaveLayer();
  }
  std::stable_sort(
      result_.effects.begin(), result_.effects.end(),
      [](const KvHeadEffect& a, const KvHeadEffect& b) { return a.fit_after < b.fit_after; });
  return Status();
}

std::vector<HeadEdits> Search::EditsOf(std::span<const KvHeadId> removed) const {
  std::vector<HeadEdits> edits(config_.layers.size());
  for (const KvHeadId& id : removed) {
    const auto l = static_cast<std::size_t>(id.layer);
    const LayerConfig& layer = config_.layers[l];
    const std::int64_t width = layer.num_heads / layer.num_kv_heads * layer.head_dim_v;
    edits[l].edits.push_back({id.kv_head * width, width, 0, {}});
  }
  return edits;
}

/// Returns true where the loss without `removed` is within the limit; they then become the result.
Result<bool> Search::Fits(const std::vector<KvHeadId>& removed) {
  const Result<Nll> nll = scorer_->Score(EditsOf(removed));
  if (!nll.ok()) return nll.status();
  result_.interrupted = nll->empty();
  if (nll->empty()) return false;
  ++result_.passes;
  Tell();
  const PruneLoss loss = MeanLoss(*nll);
  if (!(loss.fit - result_.before.fit <= options_.max_rise)) return false;
  result_.removed = removed;
  result_.after = loss;
  return true;
}

/// Returns the heads removed so far and up to `most` more, from effect `*next` on, whose single
/// effects add up to no more than the limit leaves; a head that would empty its layer is skipped.
std::vector<KvHeadId> Search::Take(std::size_t* next, std::int64_t most) const {
  std::vector<KvHeadId> taken = result_.removed;
  double room = options_.max_rise - (result_.after.fit - result_.before.fit);
  for (; *next < result_.effects.size() && most > 0; ++*next) {
    const KvHeadEffect& effect = result_.effects[*next];
    const KvHeadId& id = effect.kv_head;
    const auto gone = std::count_if(taken.begin(), taken.end(),
                                    [&](const KvHeadId& other) { return other.layer == id.layer; });
    if (gone + 1 >= KvHeadsOf(id.layer)) continue;
    room -= effect.fit_after - result_.before.fit;
    if (room < 0) break;
    taken.push_back(id);
    --most;
  }
  return taken;
}

Status Search::Choose() {
  std::int64_t at_once = std::ssize(result_.effects);
  for (std::size_t next = 0; next < result_.effects.size() && !result_.interrupted;) {
    const std::int64_t left = Most() - std::ssize(result_.removed);
    std::size_t end = next;
    const std::vector<KvHeadId> tried = Take(&end, std::min(at_once, left));
    const std::int64_t added = std::ssize(tried) - std::ssize(result_.removed);
    if (added == 0) break;
    const Result<bool> fits = Fits(tried);
    if (!fits.ok()) return fits.status();
    if (*fits || added == 1) next = end;
    at_once = *fits ? 2 * added : std::max<std::int64_t>(1, added / 2);
  }
  return Status();
}

Status Search::ChooseUniform() {
  const auto num_layers = static_cast<std::int64_t>(config_.layers.size());
  std::int64_t most = INT64_MAX;
  for (std::int64_t l = 0; l < num_layers; ++l) most = std::min(most, KvHeadsOf(l) - 1);
  for (std::int64_t each = 1; each <= most && each * num_layers <= Most(); ++each) {
    std::vector<KvHeadId> tried;
    std::vector<std::int64_t> taken(config_.layers.size());
    for (const KvHeadEffect& effect : result_.effects)
      if (std::int64_t& count = taken[static_cast<std::size_t>(effect.kv_head.layer)];
          count < each) {
        tried.push_back(effect.kv_head);
        ++count;
      }
    const Result<bool> fits = Fits(tried);
    if (!fits.ok()) return fits.status();
    if (!*fits) break;
  }
  return Status();
}

Result<Pruning> Search::Run() {
  if (Status status = CheckOptions(); !status.ok()) return status;
  Result<EffectsScorer> scorer = EffectsScorer::Create(model_, ids_, options_.text);
  if (!scorer.ok()) return scorer.status();
  scorer_.emplace(*std::move(scorer));
  Status status = MeasureBefore();
  if (status.ok()) status = MeasureEffects();
  if (status.ok() && !result_.interrupted) status = options_.uniform ? ChooseUniform() : Choose();
  if (!status.ok())
    return status.message().starts_with("logits")
               ? MakeError(status.code(), kName, ": ", status.message())
               : status;
  std::sort(result_.removed.begin(), result_.removed.end());
  return std::move(result_);
}

}  // namespace

Result<Pruning> PruneHeads(const Model& model, std::span<const TokenId> ids,
                           const PruneOptions& options) {
  return Search(model, ids, options).Run();
}

}  // namespace manyhead
