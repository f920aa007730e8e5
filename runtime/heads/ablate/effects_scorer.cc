#include "runtime/heads/ablate/effects_scorer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "manyhead/threads.h"
#include "runtime/model/score_rows.h"
#include "runtime/model/weights.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

DecoderLimits LimitsOf(const HeadTextOptions& options) {
  return {.max_rows = options.chunk,
          .max_tokens = options.tokens,
          .threads = options.threads,
          .isa = *options.isa,
          .math = options.math};
}

std::int64_t MostAttended(const ModelConfig& config) {
  std::int64_t most = 0;
  for (const LayerConfig& layer : config.layers)
    most = std::max(most, layer.num_heads * layer.head_dim_v);
  return most;
}

}  // namespace

Status CompleteTextOptions(const char* function, const Model& model, std::int64_t least_tokens,
                           std::span<const TokenId>* ids, HeadTextOptions* options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31, kDefaultTokens = 8192;
  const auto size = static_cast<std::int64_t>(ids->size());
  if (options->tokens != 0 && (options->tokens < least_tokens || options->tokens > kMost))
    return InvalidArgument(function, "tokens = ", options->tokens, "; expected 0, or ",
                           least_tokens, "..", kMost);
  const std::int64_t least = std::max(options->tokens, least_tokens);
  if (size < least)
    return InvalidArgument(function, "the text has ", size, " tokens; expected at least ", least);
  if (options->chunk < 1 || options->chunk > kMost)
    return InvalidArgument(function, "chunk = ", options->chunk, "; expected 1..", kMost);
  if (options->threads < 0 || options->threads > kMaxThreads)
    return InvalidArgument(function, "threads = ", options->threads, "; expected 0..", kMaxThreads);
  if (options->tokens == 0)
    options->tokens =
        std::max(least_tokens, std::min({size, model.config().context_length, kDefaultTokens}));
  *ids = ids->first(static_cast<std::size_t>(options->tokens));
  for (std::size_t i = 0; i < ids->size(); ++i)
    if ((*ids)[i] < 0 || (*ids)[i] >= model.config().vocab_size)
      return InvalidArgument(function, "ids[", i, "] = ", (*ids)[i], "; expected 0..",
                             model.config().vocab_size - 1);
  options->chunk = std::min(options->chunk, options->tokens);
  if (options->threads == 0) options->threads = DefaultThreads();
  if (options->isa) return Status();
  const Result<Isa> isa = SelectIsa();
  if (isa.ok()) options->isa = *isa;
  return isa.status();
}

std::vector<HeadEdits> HeadsOff(const ModelConfig& config, std::size_t layer, std::int64_t first,
                                std::int64_t count) {
  std::vector<HeadEdits> edits(config.layers.size());
  const std::int64_t width = config.layers[layer].head_dim_v;
  edits[layer].edits.push_back({first * width, count * width, 0, {}});
  return edits;
}

EffectsScorer::EffectsScorer(const Model& model, std::span<const TokenId> ids,
                             const HeadTextOptions& options, Decoder decoder, SequenceCache cache)
    : config_(&model.config()),
      ids_(ids),
      options_(options),
      decoder_(std::move(decoder)),
      cache_(std::move(cache)),
      logits_(kScoreRows * model.config().vocab_size) {}

Result<EffectsScorer> EffectsScorer::Create(const Model& model, std::span<const TokenId> ids,
                                            const HeadTextOptions& options) {
  Result<Decoder> decoder = Decoder::Create(model.impl(), LimitsOf(options));
  if (!decoder.ok()) return decoder.status();
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model.config());
  params.max_tokens = options.tokens;
  params.isa = options.isa;
  Result<SequenceCache> cache = CreateSequenceCache(std::move(params), options.chunk);
  if (!cache.ok()) return cache.status();
  return EffectsScorer(model, ids, options, *std::move(decoder), *std::move(cache));
}

Status EffectsScorer::Restart() { return cache_.cache.Truncate(cache_.sequence, 0).status(); }

/// Reserves room in the cache for the step that begins with token `begin`, and returns its tokens.
Result<std::span<const TokenId>> EffectsScorer::NextStep(std::int64_t begin) {
  const std::int64_t count = std::min(options_.chunk, options_.tokens - begin);
  if (Status status = cache_.cache.Reserve(cache_.sequence, count); !status.ok()) return status;
  return ids_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

/// Runs the layers from the first one with the ids, or from the outputs of the current layer's
/// heads.
Result<EffectsScorer::Nll> EffectsScorer::ScoreLayers(bool from_heads,
                                                      const std::vector<HeadEdits>& edits) {
  if (Status status = Restart(); !status.ok()) return status;
  Nll nll(static_cast<std::size_t>(options_.tokens - 1));
  LayerPart layers = {.first = from_heads ? layer_ : 0, .last = config_->layers.size()};
  for (std::int64_t begin = 0; begin < options_.tokens;) {
    const Result<std::span<const TokenId>> step = NextStep(begin);
    if (!step.ok()) return step.status();
    const auto count = static_cast<std::int64_t>(step->size());
    if (from_heads) {
      const LayerConfig& layer = config_->layers[layer_];
      if (layer_ > 0) layers.hidden = hidden_.data() + begin * config_->d_model;
      layers.attended = attended_.data() + begin * layer.num_heads * layer.head_dim_v;
    }
    SequenceStep one(cache_.cache, cache_.sequence, *step, RowRole::kPrefill);
    one.sequence.edits = &edits;
    if (Status status = decoder_.StepLayers(cache_.cache, one.Batch(), layers); !status.ok())
      return status;
    const std::int64_t scored = std::min(count, options_.tokens - 1 - begin);
    ScoreRows(decoder_,
              ids_.subspan(static_cast<std::size_t>(begin + 1), static_cast<std::size_t>(scored)),
              options_.threads, logits_, nll.data() + begin);
    begin += count;
    if (Cancelled()) return Nll();
  }
  if (Status status = CheckNll("", nll); !status.ok()) return status;
  return nll;
}

Result<EffectsScorer::Nll> EffectsScorer::Score(const std::vector<HeadEdits>& edits) {
  return ScoreLayers(false, edits);
}

Result<EffectsScorer::Nll> EffectsScorer::ScoreFrom(const std::vector<HeadEdits>& edits) {
  return ScoreLayers(true, edits);
}

Result<bool> EffectsScorer::EnterLayer() {
  const std::int64_t d = config_->d_model, tokens = options_.tokens;
  if (attended_.size() == 0) {
    hidden_ = AlignedBuffer<float>(tokens * d);
    next_ = AlignedBuffer<float>(tokens * d);
    attended_ = AlignedBuffer<float>(tokens * MostAttended(*config_));
  }
  if (Status status = Restart(); !status.ok()) return status;
  const LayerConfig& layer = config_->layers[layer_];
  const std::int64_t width = layer.num_heads * layer.head_dim_v;
  for (std::int64_t begin = 0; begin < tokens;) {
    const Result<std::span<const TokenId>> step = NextStep(begin);
    if (!step.ok()) return step.status();
    const auto count = static_cast<std::int64_t>(step->size());
    LayerPart part = {.first = layer_, .last = layer_ + 1};
    if (layer_ > 0) part.hidden = hidden_.data() + begin * d;
    SequenceStep one(cache_.cache, cache_.sequence, *step, RowRole::kPrefill);
    if (Status status = decoder_.StepLayers(cache_.cache, one.Batch(), part); !status.ok())
      return status;
    std::copy_n(decoder_.hidden(), count * d, next_.data() + begin * d);
    std::copy_n(decoder_.attended(), count * width, attended_.data() + begin * width);
    begin += count;
    if (Cancelled()) return false;
  }
  return true;
}

void EffectsScorer::LeaveLayer() {
  std::swap(hidden_, next_);
  ++layer_;
}

}  // namespace manyhead
