#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "runtime/cache/sequence_cache.h"
#include "runtime/model/decoder.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Scores one text repeatedly, each time with a cache of other heads.
class TextScorer {
 public:
  using Heads = std::vector<std::vector<KvHeadParams>>;
  /// Called with the number of tokens of each step; false ends the pass there.
  using StepObserver = std::function<bool(std::int64_t)>;

  static Result<TextScorer> Create(const Model& model, std::span<const TokenId> ids,
                                   const DecoderLimits& limits, StepObserver after_step);

  /// Passes queries to `tap` from now on; null = off.
  void SetQueryTap(QueryTap tap) noexcept { query_tap_ = std::move(tap); }
  /// Returns an empty cache for the first `tokens` tokens.
  Result<SequenceCache> MakeCache(const Heads& heads, std::int64_t tokens) const;
  /// Returns nll[i] = -log p(ids[i + 1] | all before), i in [0, tokens - 1); empty when a step's
  /// observer ended the pass. `cache` holds the first `tokens` tokens afterwards.
  Result<std::vector<double>> Score(SequenceCache& cache, std::int64_t tokens);
  Result<std::vector<double>> Score(const Heads& heads, std::int64_t tokens);

 private:
  TextScorer(const Model& model, std::span<const TokenId> ids, const DecoderLimits& limits,
             StepObserver after_step, Decoder decoder);

  const Model* model_;
  std::span<const TokenId> ids_;
  DecoderLimits limits_;
  StepObserver after_step_;
  Decoder decoder_;
  QueryTap query_tap_;
  AlignedBuffer<float> logits_;
};

}  // namespace manyhead
