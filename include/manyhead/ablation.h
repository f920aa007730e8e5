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

/// Says how a HeadEdit changes the output of a head.
enum class HeadEditKind : std::uint8_t {
  kScale,  ///< the head's output times `scale`; 0 switches the head off
  kMean,   ///< the mean of the head's output, taken from Ablation::means
};

/// A change to the output of one query head: its weighted sum of values, before W_O.
struct HeadEdit {
  HeadId head;                               ///< the head that is changed
  HeadEditKind kind = HeadEditKind::kScale;  ///< the kind of change
  float scale = 0;                           ///< factor of kScale

  /// Compares member by member.
  friend bool operator==(const HeadEdit&, const HeadEdit&) noexcept = default;
};

/// The output of one query head at consecutive positions, in place of what it computes there. The
/// values may come from another sequence; see MeasurePatches and CapturedRow::output.
struct HeadPatch {
  HeadId head;                  ///< the head that is patched
  std::int64_t position = 0;    ///< the first position, counted in the whole sequence
  std::vector<float> values{};  ///< [count, Dv], one row for each position; finite

  /// Compares member by member.
  friend bool operator==(const HeadPatch&, const HeadPatch&) noexcept = default;
};

/// Changes to the heads of a model, each head at most once; see Session::SetAblation. A patch takes
/// effect after the edits: at its positions the head has the patch's values whatever its edit is.
///
/// Where all query heads of a KV head are switched off or replaced by their mean, no query reads
/// the KV head: it is neither computed nor stored.
struct Ablation {
  std::vector<HeadEdit> edits{};  ///< in any order
  /// [layer][H * Dv] as MeasureHeadMeans returns them; may be empty for layers without kMean edits.
  std::vector<std::vector<float>> means{};
  std::vector<HeadPatch> patches{};  ///< in any order; no two for one head and position

  /// Compares member by member.
  friend bool operator==(const Ablation&, const Ablation&) noexcept = default;
};

/// Checks that `ablation` fits a model of `config`.
///
/// Errors   kInvalidArgument naming the edit and the valid range: a layer or head that the model
///          does not have, a head that is edited twice, a scale that is not finite, means that are
///          missing or of another size, a layer all of whose heads would be switched off; a
///          patch whose values are none, no whole rows or not finite, or of a position that another
///          patch has.
Status CheckAblation(const ModelConfig& config, const Ablation& ablation);

/// Returns the ablation that switches off all heads but `heads` in each layer that they name.
/// Errors   kInvalidArgument for a layer or head that the model does not have.
Result<Ablation> KeepOnly(const ModelConfig& config, std::span<const HeadId> heads);

/// Parses edits. The means are not part of `text`: the caller sets them where NeedsMeans is true.
///
///   3.1             switches head 1 of layer 3 off
///   3.1,4.*=0.5     also halves the output of every head of layer 4
///   0-2.0-3=mean    replaces heads 0 to 3 of layers 0 to 2 by their means
///   5.k1            switches KV head 1 of layer 5 off: all query heads that read it
///   6.2=keep        switches the heads of layer 6 off, but for head 2 and those other items name
///
/// The JSON form says the same. Its "edit" is "zero" (the default), "mean", "keep" or a number; a
/// list of layers or heads that is left out stands for all of them:
///
///   [{"layers": [3, "5-7"], "heads": [1], "edit": 0.5}, {"layers": [2], "kv_heads": [0]}]
///
/// Errors   kInvalidArgument naming the item and what was expected, and as CheckAblation, but for
///          the means.
Result<Ablation> ParseAblation(std::string_view text, const ModelConfig& config);
/// Formats the edits of an ablation as JSON, which ParseAblation reads back; patches have no text.
std::string FormatAblation(const Ablation& ablation);

/// Returns true where an edit replaces a head by its mean.
bool NeedsMeans(const Ablation& ablation) noexcept;

/// Returns, as [layer][KV head], the KV heads that no query reads under an ablation that
/// CheckAblation accepts.
std::vector<std::vector<bool>> UnreadKvHeads(const ModelConfig& config, const Ablation& ablation);

/// Says how a sequence is evaluated to measure heads with it.
struct HeadTextOptions {
  /// Number of tokens used, from the beginning of the sequence; 0: all of them, up to the model's
  /// context and 8192.
  std::int64_t tokens = 0;
  MathMode math = MathMode::kFast;  ///< arithmetic of the products, as in a session
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< largest number of tokens of one step, at least 1
  /// Called with (heads done, heads in total); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  /// When any thread sets it, the work ends after the current step, with the results so far.
  const std::atomic<bool>* cancel = nullptr;
};

/// Measures the mean output of every head over a sequence, [layer][H * Dv].
/// Errors   as MeasureHeadEffects; kIoError when it was cancelled.
Result<std::vector<std::vector<float>>> MeasureHeadMeans(const Model& model,
                                                         std::span<const TokenId> ids,
                                                         const HeadTextOptions& options);

/// Positions of a source sequence whose output of one head becomes a HeadPatch.
struct PatchSource {
  HeadId head;             ///< the head
  std::int64_t first = 0;  ///< first position in the source sequence
  std::int64_t last = -1;  ///< last position, inclusive; -1 = to the end
  std::int64_t to = -1;    ///< position that the first one is patched into; -1: the same position

  /// Compares member by member.
  friend bool operator==(const PatchSource&, const PatchSource&) noexcept = default;
};

/// Parses heads and positions to patch, separated by commas.
///
///   3.1          head 1 of layer 3, at every position of the source sequence
///   3.*@7        every head of layer 3, at position 7
///   5.k1@4-6     the query heads of KV head 1 of layer 5, at positions 4 to 6
///   3.1@4-6:9    what the source gives at positions 4 to 6, patched into positions 9 to 11
///
/// Errors   kInvalidArgument naming the item and what was expected, or the valid range.
Result<std::vector<PatchSource>> ParsePatchSources(std::string_view text,
                                                   const ModelConfig& config);

/// Evaluates the source sequence `ids` and returns the outputs of the heads at these positions.
///
/// Errors   as MeasureHeadEffects; kInvalidArgument for a position that the sequence does not have.
///          kIoError when it was cancelled.
Result<std::vector<HeadPatch>> MeasurePatches(const Model& model, std::span<const TokenId> ids,
                                              std::span<const PatchSource> sources,
                                              const HeadTextOptions& options);

/// The loss of a sequence with and without an ablation.
struct AblationLoss {
  std::int64_t tokens = 0;  ///< tokens of the sequence; all but the first are predicted
  double before = 0;        ///< loss without the ablation, nats per predicted token
  double after = 0;         ///< loss with the ablation, nats per predicted token
};

/// Measures the loss of a sequence with and without an ablation.
///
/// Errors   as MeasureHeadEffects and CheckAblation; kIoError when it was cancelled.
Result<AblationLoss> MeasureAblation(const Model& model, std::span<const TokenId> ids,
                                     const Ablation& ablation, const HeadTextOptions& options);

/// The loss of a sequence with one head switched off.
struct HeadEffect {
  HeadId head;            ///< the head that is switched off
  double loss_after = 0;  ///< loss with this head alone switched off, nats per predicted token
};

/// The losses of a sequence with single heads switched off.
struct HeadEffects {
  std::int64_t tokens = 0;            ///< tokens of the sequence
  double loss_before = 0;             ///< loss with all heads, nats per predicted token
  std::vector<HeadEffect> effects{};  ///< sorted by (layer, head)
  bool interrupted = false;           ///< true when `cancel` ended the work: heads are missing
};

/// Measures, for each of `heads` (empty: all), the loss of a sequence with this head alone switched
/// off.
///
/// A head changes nothing in the layers before its own. So each layer is visited once, with its
/// input for the whole sequence, and the loss of a head costs only the layers from its own on,
/// without the attention of its own layer, and the output matrix.
///
/// Memory   2 d_model + H * Dv numbers for each token of the sequence, besides the buffers of a
///          step.
/// Errors   kInvalidArgument naming the option and both values: a sequence of fewer than 2 tokens,
///          a token or head that the model does not have, logits that are NaN. kUnsupported as
///          Session::Create. kIoError when it was cancelled before the first result.
Result<HeadEffects> MeasureHeadEffects(const Model& model, std::span<const TokenId> ids,
                                       std::span<const HeadId> heads,
                                       const HeadTextOptions& options);

}  // namespace manyhead
