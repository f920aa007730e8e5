#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/output_file.h"
#include "manyhead/session.h"
#include "tools/manyhead/ablate_flags.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/npz.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, heads, output;
  std::vector<std::string> what;
  TextFlags text;
  SessionFlags session;
  AblationFlags ablation;

  bool Wants(const char* kind) const {
    return std::find(what.begin(), what.end(), kind) != what.end();
  }
};

/// Collects the rows of one layer at a time and writes its arrays when the next layer begins.
class LayerWriter {
 public:
  LayerWriter(const ModelConfig& config, std::vector<HeadId> heads, const Flags& flags,
              std::int64_t tokens, NpzWriter& file)
      : config_(config),
        heads_(std::move(heads)),
        pattern_wanted_(flags.Wants("pattern")),
        output_wanted_(flags.Wants("z")),
        tokens_(tokens),
        file_(file) {}

  void Add(const CapturedRow& row) {
    if (row.head.layer != layer_) {
      Flush();
      Enter(row.head.layer);
    }
    const auto place = std::lower_bound(chosen_.begin(), chosen_.end(), row.head.head);
    const std::int64_t head = place - chosen_.begin(), heads = std::ssize(chosen_);
    if (pattern_wanted_)
      std::copy(row.weights.begin(), row.weights.end(),
                pattern_.begin() + (head * tokens_ + row.position) * tokens_);
    if (output_wanted_)
      std::copy(row.output.begin(), row.output.end(),
                output_.begin() + (row.position * heads + head) * std::ssize(row.output));
  }

  /// Writes the layer that was entered last.
  void Flush() {
    if (layer_ < 0 || !status_.ok()) return;
    const std::string prefix = "blocks." + std::to_string(layer_) + ".attn.hook_";
    const std::int64_t heads = std::ssize(chosen_);
    if (pattern_wanted_)
      status_ = file_.Add(prefix + "pattern", {1, heads, tokens_, tokens_}, pattern_);
    if (output_wanted_ && status_.ok())
      status_ = file_.Add(prefix + "z", {1, tokens_, heads, Shape().head_dim_v}, output_);
  }
  const Status& status() const noexcept { return status_; }

 private:
  const LayerConfig& Shape() const { return config_.layers[static_cast<std::size_t>(layer_)]; }

  void Enter(std::int64_t layer) {
    layer_ = layer;
    chosen_.clear();
    for (const HeadId& id : heads_)
      if (id.layer == layer) chosen_.push_back(id.head);
    const auto size = static_cast<std::size_t>(std::ssize(chosen_) * tokens_);
    if (pattern_wanted_) pattern_.assign(size * static_cast<std::size_t>(tokens_), 0.0F);
    if (output_wanted_) output_.assign(size * static_cast<std::size_t>(Shape().head_dim_v), 0.0F);
  }

  const ModelConfig& config_;
  std::vector<HeadId> heads_;  // sorted
  bool pattern_wanted_, output_wanted_;
  std::int64_t tokens_;
  NpzWriter& file_;
  std::int64_t layer_ = -1;
  std::vector<std::int64_t> chosen_;
  std::vector<float> pattern_;  // [heads, tokens, tokens]
  std::vector<float> output_;   // [tokens, heads, Dv]
  Status status_;
};

/// Returns the heads that --heads names, sorted; all where it is not given.
Result<std::vector<HeadId>> ChosenHeads(const ModelConfig& config, const std::string& text) {
  const Result<std::vector<PatchSource>> sources =
      ParsePatchSources(text.empty() ? "*.*" : text, config);
  if (!sources.ok()) return sources.status();
  std::vector<HeadId> heads;
  for (const PatchSource& source : *sources) {
    if (source != PatchSource{.head = source.head})
      return Status(StatusCode::kInvalidArgument, "--heads takes no positions; expected no @");
    heads.push_back(source.head);
  }
  std::sort(heads.begin(), heads.end());
  heads.erase(std::unique(heads.begin(), heads.end()), heads.end());
  return heads;
}

/// Evaluates the text in one step, in which the layers follow each other, and writes each.
Status Export(const Flags& flags, const Model& model, const std::vector<TokenId>& ids,
              Session& session, const std::vector<HeadId>& heads, const OutputSink& sink) {
  NpzWriter file(sink);
  const std::int64_t tokens = std::ssize(ids);
  const std::vector<std::int64_t> numbers(ids.begin(), ids.end());
  if (Status status = file.Add("tokens", {1, tokens}, numbers); !status.ok()) return status;
  LayerWriter layers(model.config(), heads, flags, tokens, file);
  const CaptureOptions capture{.heads = heads,
                               .weights = flags.Wants("pattern"),
                               .on_row = [&](const CapturedRow& row) { layers.Add(row); }};
  if (Status status = session.SetCapture(&capture); !status.ok()) return status;
  const auto logits = session.Append(ids, RowRole::kPrefill);
  if (Status status = session.SetCapture(nullptr); !status.ok()) return status;
  if (!logits.ok()) return logits.status();
  layers.Flush();
  return layers.status().ok() ? file.Finish() : layers.status();
}

int Run(const Flags& flags) {
  if (Status status =
          CheckOutputs(flags.model, {{"-o", flags.output}}, {{"-f", flags.text.file.value_or("")}});
      !status.ok())
    return Fail(status);
  const Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  const auto& [model, ids] = *input;
  const Result<std::vector<HeadId>> heads = ChosenHeads(model.config(), flags.heads);
  if (!heads.ok()) return Fail(heads.status());
  SessionOptions options = ToSessionOptions(flags.session);
  if (options.context == 0) options.context = std::max<std::int64_t>(1, std::ssize(ids));
  options.chunk = std::max<std::int64_t>(1, std::ssize(ids));
  Result<Session> session = Session::Create(model, options);
  if (!session.ok()) return Fail(session.status());
  if (flags.ablation.Given())
    if (Status status = Ablate(flags.ablation, flags.session, model, *session); !status.ok())
      return Fail(status);
  const SlowNotice notice("evaluating the text");
  const Status status = WriteOutputFile(flags.output, [&](const OutputSink& sink) {
    return Export(flags, model, ids, *session, *heads, sink);
  });
  if (!status.ok()) return Fail(status);
  Stdout::Write(flags.output + ": " + std::to_string(heads->size()) + " heads, " +
                std::to_string(ids.size()) + " tokens\n");
  return Stdout::Finish();
}

}  // namespace

Command AddHeadsExport(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app =
      heads.AddSubcommand("export", "Write attention patterns and outputs to an NPZ file");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  app.AddOption("-o,--output", &flags->output, "The file, which numpy.load reads")
      .Type("FILE")
      .Required();
  app.AddOption("--heads", &flags->heads,
                "The heads, as LAYER.HEAD,... such as 1.0,4.*; default all")
      .Type("HEADS");
  AddChoiceList(app, "--what", &flags->what, {"pattern", "z"},
                "pattern: attention weights; z: weighted sums of values")
      .Default("pattern,z");
  flags->what = {"pattern", "z"};
  AddThreads(app, &flags->session.threads);
  AddContext(app, &flags->session);
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddAblation(app, &flags->ablation);
  app.Footer(
      std::string(kAblationHelp) +
      "Arrays have the names of TransformerLens and a batch of 1: blocks.L.attn.hook_pattern [1, "
      "heads, n, n]\n"
      "and blocks.L.attn.hook_z [1, n, heads, Dv]; tokens [1, n] has the ids.\n"
      "Examples:\n"
      "  manyhead heads export -p 'x7k2qz x7k2qz' -o heads.npz\n"
      "  manyhead heads export -m gemma3-270m -f book.txt -c 512 --heads 5.* -o layer5.npz");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
