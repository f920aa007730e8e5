#include "tools/manyhead/ablate_flags.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "tools/manyhead/interrupt.h"

namespace manyhead::cli {

const char* const kAblationHelp =
    "Edits of heads are separated by commas:\n"
    "  3.1             head 1 of layer 3 gives zeros\n"
    "  3.1,4.*=0.5     and what every head of layer 4 gives is halved\n"
    "  0-2.0-3=mean    heads 0 to 3 of layers 0 to 2 give the mean of what they give on another "
    "text\n"
    "  5.k1            every query head that reads KV head 1 of layer 5 gives zeros\n"
    "  6.2=keep        in layer 6 every head but head 2 gives zeros\n"
    "or JSON: [{\"layers\": [3, \"5-7\"], \"heads\": [1], \"edit\": 0.5}, {\"layers\": [2], "
    "\"kv_heads\": [0]}],\n"
    "\"edit\" being \"zero\" (the default), \"mean\", \"keep\" or a factor; or a file of either.\n"
    "A KV head that no query head reads any more is neither computed, read nor stored.\n"
    "--patch takes the outputs of heads from the text of --patch-from:\n"
    "  3.1             head 1 of layer 3, at every position of that text\n"
    "  3.*@7,5.k1@4-6  every head of layer 3 at position 7, and those of KV head 1 at 4 to 6\n"
    "  3.1@4-6:9       what positions 4 to 6 give there, in positions 9 to 11 here\n";

namespace {

bool IsFile(const std::string& text) {
  std::error_code ignored;  // set for a text that is too long for a name
  return std::filesystem::exists(text, ignored);
}

Result<std::vector<TokenId>> ReadIds(const std::string& path, const Model& model) {
  const Result<std::string> text = ReadFile(path);
  return text.ok() ? model.tokenizer().Encode(*text) : text.status();
}

Result<std::vector<std::vector<float>>> MeasureMeans(const std::string& path, const Model& model,
                                                     const HeadTextOptions& options) {
  const Result<std::vector<TokenId>> ids = ReadIds(path, model);
  return ids.ok() ? MeasureHeadMeans(model, *ids, options) : ids.status();
}

Result<std::vector<HeadPatch>> ReadPatches(const AblationFlags& flags, const Model& model,
                                           const HeadTextOptions& options) {
  const Result<std::vector<PatchSource>> sources = ParsePatchSources(flags.patch, model.config());
  if (!sources.ok()) return sources.status();
  const Result<std::vector<TokenId>> ids = ReadIds(flags.patch_from, model);
  return ids.ok() ? MeasurePatches(model, *ids, *sources, options) : ids.status();
}

/// Reads the edits of the flags and measures their means.
Result<Ablation> ReadEdits(const AblationFlags& flags, const Model& model,
                           const HeadTextOptions& options) {
  std::string text = flags.edits;
  const bool is_json = text.starts_with('[') || text.starts_with('{');
  if (!is_json && IsFile(text)) {
    Result<std::string> file = ReadFile(text, /*settings=*/true);
    if (!file.ok()) return file.status();
    text = *std::move(file);
  }
  Result<Ablation> ablation = ParseAblation(text, model.config());
  if (!ablation.ok() || !NeedsMeans(*ablation)) return ablation;
  if (flags.means.empty())
    return Status(StatusCode::kInvalidArgument,
                  "heads that give their mean need a text; --ablate-means FILE names it");
  Result<std::vector<std::vector<float>>> means = MeasureMeans(flags.means, model, options);
  if (!means.ok()) return means.status();
  ablation->means = *std::move(means);
  return ablation;
}

}  // namespace

void AddAblationTexts(App app, AblationFlags* flags) {
  app.AddOption("--ablate-means", &flags->means, "Measure the means of =mean on the text in FILE")
      .Type("FILE");
  const Option patch = app.AddOption("--patch", &flags->patch,
                                     "Give heads the outputs that they have on another text: "
                                     "LAYER.HEAD[@FIRST[-LAST][:TO]],...; see below")
                           .Type("HEADS");
  const Option from = app.AddOption("--patch-from", &flags->patch_from,
                                    "The text in FILE that the outputs of --patch come from")
                          .Type("FILE");
  patch.Needs(from);
  from.Needs(patch);
}

void AddAblation(App app, AblationFlags* flags) {
  app.AddOption("--ablate", &flags->edits,
                "Edit head outputs: LAYER.HEAD[=EDIT],..., or JSON, or a file of either; see "
                "below")
      .Type("EDITS|JSON|FILE");
  AddAblationTexts(app, flags);
}

Result<Ablation> ReadAblation(const AblationFlags& flags, const Model& model,
                              const HeadTextOptions& options) {
  HeadTextOptions whole = options;
  whole.tokens = 0;  // the number is that of the text that is evaluated
  Result<Ablation> ablation = flags.edits.empty() ? Ablation() : ReadEdits(flags, model, whole);
  if (!ablation.ok() || flags.patch.empty()) return ablation;
  Result<std::vector<HeadPatch>> patches = ReadPatches(flags, model, whole);
  if (!patches.ok()) return patches.status();
  ablation->patches = *std::move(patches);
  return ablation;
}

Status Ablate(const AblationFlags& flags, const SessionFlags& session_flags, const Model& model,
              Session& session) {
  const Result<Ablation> ablation = ReadAblation(flags, model, ToHeadTextOptions(session_flags));
  return ablation.ok() ? session.SetAblation(*ablation) : ablation.status();
}

HeadTextOptions ToHeadTextOptions(const SessionFlags& flags) {
  HeadTextOptions options;
  options.tokens = flags.context;
  options.math = flags.math == "exact" ? MathMode::kExact : MathMode::kFast;
  options.threads = static_cast<int>(flags.threads);
  options.cancel = &Interrupted();
  return options;
}

}  // namespace manyhead::cli
