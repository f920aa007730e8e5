#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/head_id.h"
#include "manyhead/isa.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// What a HeadEdit does to what a head gives.
enum class HeadEditKind : std::uint8_t {
  kScale,  ///< what the head gives times `scale`; 0 switches the head off
  kMean,   ///< the mean of what the head gives, of Ablation::means
};

/// A change to what one query head gives: its weighted sum of values, before W_O.
struct HeadEdit {
  HeadId head;                               ///< which head
  HeadEditKind kind = HeadEditKind::kScale;  ///< how it changes
  float scale = 0;                           ///< of kScale

  /// Member by member.
  friend bool operator==(const HeadEdit&, const HeadEdit&) noexcept = default;
};

/// Changes to the heads of a model, each head at most once; see Session::SetAblation.
///
/// A KV head all of whose query heads are off, or give a mean, is read by nobody: it is neither
/// computed nor stored.
struct Ablation {
  std::vector<HeadEdit> edits{};  ///< in any order
  /// [layer][H * Dv] as MeasureHeadMeans gives them; may be empty for layers without kMean edits.
  std::vector<std::vector<float>> means{};

  /// Member by member.
  friend bool operator==(const Ablation&, const Ablation&) noexcept = default;
};

/// Whether a model of `config` can be changed so.
///
/// Errors   kInvalidArgument naming the edit and the valid range: a layer or head that the model
///          does not have, a head that is edited twice, a scale that is not finite, means that are
///          missing or of another size, a layer all of whose heads would be off.
Status CheckAblation(const ModelConfig& config, const Ablation& ablation);

/// Heads off in each layer that `heads` name, but for those they name.
/// Errors   kInvalidArgument for a layer or head that the model does not have.
Result<Ablation> KeepOnly(const ModelConfig& config, std::span<const HeadId> heads);

/// Reads edits from a text. Means come from elsewhere: NeedsMeans tells whether they must.
///
///   3.1             head 1 of layer 3 off
///   3.1,4.*=0.5     and what every head of layer 4 gives halved
///   0-2.0-3=mean    heads 0 to 3 of layers 0 to 2 give their means
///   5.k1            KV head 1 of layer 5 off: all query heads that read it
///   6.2=keep        in layer 6 only head 2, and heads that other items name, stay
///
/// The same as JSON, "edit" being "zero" (also if there is none), "mean", "keep" or a number, lists
/// that are left out standing for all:
///
///   [{"layers": [3, "5-7"], "heads": [1], "edit": 0.5}, {"layers": [2], "kv_heads": [0]}]
///
/// Errors   kInvalidArgument naming the item and what was expected, and as CheckAblation, but for
///          means.
Result<Ablation> ParseAblation(std::string_view text, const ModelConfig& config);
/// The JSON that ParseAblation reads back to the same edits.
std::string FormatAblation(const Ablation& ablation);

/// Whether some head is to give its mean.
bool NeedsMeans(const Ablation& ablation) noexcept;

/// [layer][KV head]: those that nobody reads, of an ablation that CheckAblation accepts.
std::vector<std::vector<bool>> UnreadKvHeads(const ModelConfig& config, const Ablation& ablation);

/// How a text is evaluated to measure heads with.
struct HeadTextOptions {
  /// Of the text, from its beginning; 0: all, up to the model's context and 8192.
  std::int64_t tokens = 0;
  MathMode math = MathMode::kFast;  ///< of products, as a session's
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< most tokens of one step, at least 1
  /// Called with (heads done, heads in all); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  /// When set by anyone, the work ends after the step it is in, with what is known.
  const std::atomic<bool>* cancel = nullptr;
};

/// What heads give on average over a text, [layer][H * Dv].
/// Errors   as MeasureHeadEffects; kIoError when it was cancelled.
Result<std::vector<std::vector<float>>> MeasureHeadMeans(const Model& model,
                                                         std::span<const TokenId> ids,
                                                         const HeadTextOptions& options);

/// What an ablation does to a text.
struct AblationLoss {
  std::int64_t tokens = 0;  ///< of the text; all but the first are predicted
  double before = 0;        ///< nats per predicted token
  double after = 0;         ///< with the ablation
};

/// The loss of a text with and without an ablation.
///
/// Errors   as MeasureHeadEffects and CheckAblation; kIoError when it was cancelled.
Result<AblationLoss> MeasureAblation(const Model& model, std::span<const TokenId> ids,
                                     const Ablation& ablation, const HeadTextOptions& options);

/// What one head does to a text.
struct HeadEffect {
  HeadId head;            ///< the one that is off
  double loss_after = 0;  ///< nats per predicted token, with this head alone off
};

/// What each of some heads does to a text.
struct HeadEffects {
  std::int64_t tokens = 0;            ///< of the text
  double loss_before = 0;             ///< nats per predicted token, with all heads
  std::vector<HeadEffect> effects{};  ///< by (layer, head)
  bool interrupted = false;           ///< by `cancel`: heads are missing
};

/// What each of `heads` (empty: all) does to the loss of a text: that without it.
///
/// Heads of a layer change nothing before it. So the layers are gone through once, each with what
/// stands before it for the whole text, and a head's loss costs the layers from its own on, without
/// its own layer's attention, and the output matrix.
///
/// Memory   beside a step's buffers, 2 d_model + H * Dv numbers for each token of the text.
/// Errors   kInvalidArgument naming the option and both values: fewer than 2 tokens in the text, a
///          token or head that the model does not have, logits that are NaN. kUnsupported as
///          Session::Create. kIoError when it was cancelled before anything was known.
Result<HeadEffects> MeasureHeadEffects(const Model& model, std::span<const TokenId> ids,
                                       std::span<const HeadId> heads,
                                       const HeadTextOptions& options);

}  // namespace manyhead
