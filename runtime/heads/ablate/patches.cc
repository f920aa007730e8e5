#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "manyhead/ablation.h"
#include "runtime/heads/ablate/ablation_impl.h"
#include "runtime/heads/ablate/effects_scorer.h"
#include "runtime/heads/ablate/number_range.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

/// Outputs of heads that come from another sequence.

namespace manyhead {
namespace {

constexpr const char* kParseName = "ParsePatchSources";

/// Reads "@4-6:9" behind a head: positions of the source, and where the first of them goes.
bool ReadPositions(std::string_view text, PatchSource* source) {
  const std::size_t colon = text.find(':');
  const std::optional<NumberRange> range = ReadNumberRange(text.substr(0, colon));
  if (!range) return false;
  source->first = range->first;
  source->last = range->last;
  if (colon == text.npos) return true;
  const std::string_view to = text.substr(colon + 1);
  const char* const end = to.data() + to.size();
  const auto read = std::from_chars(to.data(), end, source->to);
  return read.ec == std::errc() && read.ptr == end && source->to >= 0;
}

/// Adds one item, "LAYER.HEAD[@FIRST[-LAST][:TO]]".
Status AddItem(std::string_view item, const ModelConfig& config,
               std::vector<PatchSource>* sources) {
  const std::size_t at = item.find('@');
  PatchSource source;
  if (at != item.npos && !ReadPositions(item.substr(at + 1), &source))
    return InvalidArgument(kParseName, "item \"", Printable(item),
                           "\"; expected a position after @, such as @7, @4-6 or @4-6:9");
  // The heads are those that an edit of the same spelling would name.
  const Result<std::vector<HeadId>> heads = ParseHeads(kParseName, item.substr(0, at), config);
  if (!heads.ok()) return heads.status();
  for (const HeadId& head : *heads) {
    source.head = head;
    sources->push_back(source);
  }
  return Status();
}

/// Fills in the end of the source, and checks that it has these positions.
Status Complete(std::int64_t tokens, PatchSource* source) {
  if (source->last == -1) source->last = tokens - 1;
  if (source->to == -1) source->to = source->first;
  if (source->first < 0 || source->first > source->last || source->last >= tokens)
    return InvalidArgument("MeasurePatches", "positions ", source->first, "..", source->last,
                           " of head ", source->head.layer, ".", source->head.head,
                           "; expected some of 0..", tokens - 1);
  return Status();
}

HeadPatch PatchOf(const float* attended, const LayerConfig& layer, const PatchSource& source) {
  HeadPatch patch{source.head, source.to, {}};
  const std::int64_t width = layer.head_dim_v, row = layer.num_heads * width;
  for (std::int64_t t = source.first; t <= source.last; ++t) {
    const float* values = attended + t * row + source.head.head * width;
    patch.values.insert(patch.values.end(), values, values + width);
  }
  return patch;
}

}  // namespace

Result<std::vector<PatchSource>> ParsePatchSources(std::string_view text,
                                                   const ModelConfig& config) {
  std::vector<PatchSource> sources;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (Status status = AddItem(text.substr(begin, end - begin), config, &sources); !status.ok())
      return status;
    begin = end + 1;
  }
  return sources;
}

Result<std::vector<HeadPatch>> MeasurePatches(const Model& model, std::span<const TokenId> ids,
                                              std::span<const PatchSource> wanted,
                                              const HeadTextOptions& text) {
  constexpr const char* kName = "MeasurePatches";
  const ModelConfig& config = model.config();
  HeadTextOptions options = text;
  if (Status status = CompleteTextOptions(kName, model, 1, &ids, &options); !status.ok())
    return status;
  std::vector<PatchSource> sources(wanted.begin(), wanted.end());
  std::vector<HeadPatch> patches;
  std::int64_t layers = 0;
  for (PatchSource& source : sources) {
    Status status = CheckHead(config, kName, source.head);
    if (status.ok()) status = Complete(options.tokens, &source);
    if (!status.ok()) return status;
    layers = std::max(layers, source.head.layer + 1);
  }
  Result<EffectsScorer> scorer = EffectsScorer::Create(model, ids, options);
  if (!scorer.ok()) return scorer.status();
  for (std::int64_t l = 0; l < layers; ++l) {
    const Result<bool> entered = scorer->EnterLayer();
    if (!entered.ok()) return entered.status();
    if (!*entered) return IoError(kName, "interrupted before anything was known");
    for (const PatchSource& source : sources)
      if (source.head.layer == l)
        patches.push_back(
            PatchOf(scorer->attended().data(), config.layers[static_cast<std::size_t>(l)], source));
    scorer->LeaveLayer();
  }
  return patches;
}

}  // namespace manyhead
