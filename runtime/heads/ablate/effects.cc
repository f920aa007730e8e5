#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "manyhead/ablation.h"
#include "runtime/heads/ablate/ablation_impl.h"
#include "runtime/heads/ablate/effects_scorer.h"
#include "runtime/platform/errors.h"

/// Measures the mean outputs of heads, and the loss of a text without them.

namespace manyhead {
namespace {

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Status Interrupted(const char* function) {
  return IoError(function, "interrupted before anything was known");
}

Status Named(const char* function, const Status& status) {
  if (status.message().starts_with("logits"))
    return {status.code(), std::string(function) + ": " + status.message()};
  return status;
}

void Tell(const HeadTextOptions& options, std::int64_t done, std::int64_t total) {
  if (options.on_progress) options.on_progress(done, total);
}

/// Returns `heads`, or all heads, in order and without duplicates.
Result<std::vector<HeadId>> HeadsToMeasure(const ModelConfig& config,
                                           std::span<const HeadId> heads) {
  std::set<HeadId> sorted;
  for (const HeadId& id : heads) {
    if (Status status = CheckHead(config, "MeasureHeadEffects", id); !status.ok()) return status;
    sorted.insert(id);
  }
  if (heads.empty())
    for (std::size_t l = 0; l < config.layers.size(); ++l)
      for (std::int64_t h = 0; h < config.layers[l].num_heads; ++h)
        sorted.insert({static_cast<std::int64_t>(l), h});
  return std::vector<HeadId>(sorted.begin(), sorted.end());
}

}  // namespace

Result<std::vector<std::vector<float>>> MeasureHeadMeans(const Model& model,
                                                         std::span<const TokenId> ids,
                                                         const HeadTextOptions& wanted) {
  constexpr const char* kName = "MeasureHeadMeans";
  HeadTextOptions options = wanted;
  if (Status status = CompleteTextOptions(kName, model, 1, &ids, &options); !status.ok())
    return status;
  Result<EffectsScorer> scorer = EffectsScorer::Create(model, ids, options);
  if (!scorer.ok()) return scorer.status();
  std::vector<std::vector<float>> means;
  for (const LayerConfig& layer : model.config().layers) {
    const Result<bool> entered = scorer->EnterLayer();
    if (!entered.ok()) return entered.status();
    if (!*entered) return Interrupted(kName);
    const auto width = static_cast<std::size_t>(layer.num_heads * layer.head_dim_v);
    std::vector<double> sums(width);
    const float* row = scorer->attended().data();
    for (std::int64_t t = 0; t < options.tokens; ++t, row += width)
      for (std::size_t i = 0; i < width; ++i) sums[i] += static_cast<double>(row[i]);
    std::vector<float>& mean = means.emplace_back();
    for (const double sum : sums)
      mean.push_back(static_cast<float>(sum / static_cast<double>(options.tokens)));
    scorer->LeaveLayer();
  }
  return means;
}

Result<AblationLoss> MeasureAblation(const Model& model, std::span<const TokenId> ids,
                                     const Ablation& ablation, const HeadTextOptions& wanted) {
  constexpr const char* kName = "MeasureAblation";
  HeadTextOptions options = wanted;
  if (Status status = CheckAblation(model.config(), ablation); !status.ok()) return status;
  if (Status status = CompleteTextOptions(kName, model, 2, &ids, &options); !status.ok())
    return status;
  Result<EffectsScorer> scorer = EffectsScorer::Create(model, ids, options);
  if (!scorer.ok()) return scorer.status();
  AblationLoss loss;
  loss.tokens = options.tokens;
  double* const losses[] = {&loss.before, &loss.after};
  for (int i = 0; i < 2; ++i) {
    const Result<EffectsScorer::Nll> nll =
        scorer->Score(i == 0 ? std::vector<HeadEdits>() : EditsOf(model.config(), ablation, {}));
    if (!nll.ok()) return Named(kName, nll.status());
    if (nll->empty()) return Interrupted(kName);
    *losses[i] = Mean(*nll);
    Tell(options, i + 1, 2);
  }
  return loss;
}

Result<HeadEffects> MeasureHeadEffects(const Model& model, std::span<const TokenId> ids,
                                       std::span<const HeadId> heads,
                                       const HeadTextOptions& wanted) {
  constexpr const char* kName = "MeasureHeadEffects";
  HeadTextOptions options = wanted;
  const ModelConfig& config = model.config();
  const Result<std::vector<HeadId>> measured = HeadsToMeasure(config, heads);
  if (!measured.ok()) return measured.status();
  if (Status status = CompleteTextOptions(kName, model, 2, &ids, &options); !status.ok())
    return status;
  Result<EffectsScorer> scorer = EffectsScorer::Create(model, ids, options);
  if (!scorer.ok()) return scorer.status();
  const Result<EffectsScorer::Nll> before = scorer->Score({});
  if (!before.ok()) return Named(kName, before.status());
  if (before->empty()) return Interrupted(kName);
  HeadEffects effects;
  effects.tokens = options.tokens;
  effects.loss_before = Mean(*before);
  Tell(options, 0, std::ssize(*measured));
  bool entered = false;
  for (const HeadId& id : *measured) {
    while (scorer->layer() < static_cast<std::size_t>(id.layer) || !entered) {
      if (entered) scorer->LeaveLayer();
      const Result<bool> entry = scorer->EnterLayer();
      if (!entry.ok()) return entry.status();
      entered = true;
      if (*entry) continue;
      effects.interrupted = true;
      return effects;
    }
    const Result<EffectsScorer::Nll> nll =
        scorer->ScoreFrom(HeadsOff(config, scorer->layer(), id.head, 1));
    if (!nll.ok()) return Named(kName, nll.status());
    effects.interrupted = nll->empty();
    if (effects.interrupted) return effects;
    effects.effects.push_back({id, Mean(*nll)});
    Tell(options, std::ssize(effects.effects), std::ssize(*measured));
  }
  return effects;
}

}  // namespace manyhead
