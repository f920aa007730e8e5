#include "runtime/calibrate/text_scorer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/model/score_rows.h"

namespace manyhead {

TextScorer::TextScorer(const Model& model, std::span<const TokenId> ids,
                       const DecoderLimits& limits, StepObserver after_step, Decoder decoder)
    : model_(&model),
      ids_(ids),
      limits_(limits),
      after_step_(std::move(after_step)),
      decoder_(std::move(decoder)),
      logits_(kScoreRows * model.config().vocab_size) {}

Result<TextScorer> TextScorer::Create(const Model& model, std::span<const TokenId> ids,
                                      const DecoderLimits& limits, StepObserver after_step) {
  Result<Decoder> decoder = Decoder::Create(model.impl(), limits);
  if (!decoder.ok()) return decoder.status();
  return TextScorer(model, ids, limits, std::move(after_step), *std::move(decoder));
}

Result<SequenceCache> TextScorer::MakeCache(const Heads& heads, std::int64_t tokens) const {
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model_->config());
  params.heads = heads;
  params.max_tokens = tokens;
  params.isa = limits_.isa;
  return CreateSequenceCache(std::move(params), std::min(limits_.max_rows, tokens));
}

Result<std::vector<double>> TextScorer::Score(SequenceCache& cache, std::int64_t tokens) {
  std::vector<double> nll(static_cast<std::size_t>(tokens - 1));
  for (std::int64_t begin = 0; begin < tokens;) {
    const std::int64_t count = std::min(limits_.max_rows, tokens - begin);
    if (Status status = cache.cache.Reserve(cache.sequence, count); !status.ok()) return status;
    const auto first = static_cast<std::size_t>(begin);
    const auto step = ids_.subspan(first, static_cast<std::size_t>(count));
    SequenceStep one(cache.cache, cache.sequence, step, RowRole::kPrefill);
    one.sequence.query_tap = &query_tap_;
    if (Status status = decoder_.Step(cache.cache, one.Batch()); !status.ok()) return status;
    const std::int64_t scored = std::min(count, tokens - 1 - begin);
    ScoreRows(decoder_, ids_.subspan(first + 1, static_cast<std::size_t>(scored)), limits_.threads,
              logits_, nll.data() + begin);
    begin += count;
    if (!after_step_(count)) return std::vector<double>();
  }
  if (Status status = CheckNll("CalibrateKv: ", nll); !status.ok()) return status;
  return nll;
}

Result<std::vector<double>> TextScorer::Score(const Heads& heads, std::int64_t tokens) {
  Result<SequenceCache> cache = MakeCache(heads, tokens);
  if (!cache.ok()) return cache.status();
  return Score(*cache, tokens);
}

}  // namespace manyhead
