#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "manyhead/ablation.h"
#include "runtime/cache/sequence_cache.h"
#include "runtime/model/decoder.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Evaluates a text layer by layer: the input of a layer is kept for all tokens, so that a change
/// in that layer costs only the layers from there on.
///
///   Score(edits)                              the whole text, through all layers
///   EnterLayer(); ScoreFrom(edits); ...       the same with edits of this layer alone
///   LeaveLayer(); EnterLayer(); ...           and so on with the next
///
/// Losses are empty when `cancel` was set meanwhile.
class EffectsScorer {
 public:
  using Nll = std::vector<double>;  ///< [tokens - 1], loss of each token but the first, in nats

  /// Creates a scorer; `options` must have the defaults filled in; see CompleteTextOptions.
  static Result<EffectsScorer> Create(const Model& model, std::span<const TokenId> ids,
                                      const HeadTextOptions& options);

  Result<Nll> Score(const std::vector<HeadEdits>& edits);
  /// Moves to the next layer; returns false when it was cancelled.
  Result<bool> EnterLayer();
  Result<Nll> ScoreFrom(const std::vector<HeadEdits>& edits);
  void LeaveLayer();

  std::size_t layer() const noexcept { return layer_; }
  bool done() const noexcept { return layer_ == config_->layers.size(); }
  /// The outputs of the current layer's heads, [tokens, H * Dv].
  const AlignedBuffer<float>& attended() const noexcept { return attended_; }

 private:
  EffectsScorer(const Model& model, std::span<const TokenId> ids, const HeadTextOptions& options,
                Decoder decoder, SequenceCache cache);
  bool Cancelled() const noexcept {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }
  Result<Nll> ScoreLayers(bool from_heads, const std::vector<HeadEdits>& edits);
  Status Restart();
  Result<std::span<const TokenId>> NextStep(std::int64_t begin);

  const ModelConfig* config_;
  std::span<const TokenId> ids_;
  HeadTextOptions options_;
  Decoder decoder_;
  SequenceCache cache_;
  AlignedBuffer<float> logits_;    // [kScoreRows, vocab]
  AlignedBuffer<float> hidden_;    // [tokens, d] before the layer; unused in layer 0
  AlignedBuffer<float> next_;      // [tokens, d] after the layer
  AlignedBuffer<float> attended_;  // [tokens, largest H * Dv]
  std::size_t layer_ = 0;
};

/// Fills in defaults and checks them and `ids`, which are reduced to the first options.tokens.
/// Errors   kInvalidArgument, with a message that begins with `function`; kUnsupported.
Status CompleteTextOptions(const char* function, const Model& model, std::int64_t least_tokens,
                           std::span<const TokenId>* ids, HeadTextOptions* options);

/// Returns edits that switch some heads of one layer off, in a model of `config`.
std::vector<HeadEdits> HeadsOff(const ModelConfig& config, std::size_t layer, std::int64_t first,
                                std::int64_t count);

}  // namespace manyhead
