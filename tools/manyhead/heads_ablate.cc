#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/model.h"
#include "tools/manyhead/ablate_flags.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  TextFlags text;
  SessionFlags session;
  AblationFlags ablation;
  bool each = false;
};

std::string Loss(double value) { return FormatFixed(value, 6); }

/// Returns a row for each head.
std::vector<Json> HeadRows(const ModelConfig& config, const HeadEffects& effects) {
  std::vector<Json> rows;
  for (const HeadEffect& effect : effects.effects) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(effect.head.layer)];
    Json row;
    row["layer"] = effect.head.layer;
    row["head"] = effect.head.head;
    row["kv_head"] = effect.head.head / (layer.num_heads / layer.num_kv_heads);
    row["loss_before"] = effects.loss_before;
    row["loss_after"] = effect.loss_after;
    row["rise"] = effect.loss_after - effects.loss_before;
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns what was evaluated: the members that every output begins with.
Json InputJson(const Flags& flags, const Model& model, std::int64_t tokens) {
  Json json;
  json["model"] = ModelType(model);
  json["model_path"] = model.path();
  json["text"] = TextJson(flags.text);
  json["tokens"] = tokens;
  json["math"] = flags.session.math;
  return json;
}

/// Returns the heads and positions of patches, without their values.
Json PatchesJson(const ModelConfig& config, const std::vector<HeadPatch>& patches) {
  Json list = Json::array();
  for (const HeadPatch& patch : patches) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(patch.head.layer)];
    Json entry;
    entry["layer"] = patch.head.layer;
    entry["head"] = patch.head.head;
    entry["position"] = patch.position;
    entry["count"] = std::ssize(patch.values) / layer.head_dim_v;
    list.push_back(std::move(entry));
  }
  return list;
}

void PrintTable(const ModelConfig& config, const HeadEffects& effects) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "head", "KV head", "loss before", "loss after", "rise"}};
  for (const HeadEffect& effect : effects.effects) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(effect.head.layer)];
    const std::int64_t group = layer.num_heads / layer.num_kv_heads;
    rows.push_back({std::to_string(effect.head.layer), std::to_string(effect.head.head),
                    std::to_string(effect.head.head / group), Loss(effects.loss_before),
                    Loss(effect.loss_after), Loss(effect.loss_after - effects.loss_before)});
  }
  Stdout::Write(FormatTable(rows, 0));
  Stdout::Write("nats per token of " + std::to_string(effects.tokens) +
                ", with one head at a time off\n");
}

/// Returns the heads that the edits name; all heads where there are no edits.
Result<std::vector<HeadId>> NamedHeads(const Flags& flags, const Model& model) {
  std::vector<HeadId> heads;
  if (flags.ablation.edits.empty()) return heads;
  const Result<Ablation> named =
      ReadAblation(flags.ablation, model, ToHeadTextOptions(flags.session));
  if (!named.ok()) return named.status();
  for (const HeadEdit& edit : named->edits) {
    if (edit.kind != HeadEditKind::kScale || edit.scale != 0)
      return Status(StatusCode::kInvalidArgument,
                    "--each switches heads off one at a time; expected no =EDIT");
    heads.push_back(edit.head);
  }
  return heads;
}

int RunEach(const Flags& flags, const Model& model, std::span<const TokenId> ids) {
  const Result<std::vector<HeadId>> heads = NamedHeads(flags, model);
  if (!heads.ok()) return Fail(heads.status());
  Progress progress("switching heads off", "heads");
  HeadTextOptions options = ToHeadTextOptions(flags.session);
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  const Result<HeadEffects> effects = MeasureHeadEffects(model, ids, *heads, options);
  progress.Clear();
  if (!effects.ok()) return Fail(effects.status());
  if (effects->interrupted)
    std::fprintf(stderr, "interrupted: %zu heads done\n", effects->effects.size());
  if (flags.format == "json") {
    Json json = InputJson(flags, model, effects->tokens);
    json["interrupted"] = effects->interrupted;
    json["heads"] = HeadRows(model.config(), *effects);
    Stdout::WriteJson(json);
  } else if (flags.format == "csv") {
    WriteCsv(HeadRows(model.config(), *effects));
  } else {
    PrintTable(model.config(), *effects);
  }
  return Stdout::Finish();
}

int RunTogether(const Flags& flags, const Model& model, std::span<const TokenId> ids) {
  const HeadTextOptions options = ToHeadTextOptions(flags.session);
  const Result<Ablation> ablation = ReadAblation(flags.ablation, model, options);
  if (!ablation.ok()) return Fail(ablation.status());
  const SlowNotice notice("evaluating the text twice");
  const Result<AblationLoss> loss = MeasureAblation(model, ids, *ablation, options);
  if (!loss.ok()) return Fail(loss.status());
  if (flags.format == "json") {
    Json json = InputJson(flags, model, loss->tokens);
    json["loss_before"] = loss->before;
    json["loss_after"] = loss->after;
    json["rise"] = loss->after - loss->before;
    json["edits"] = ParseJson(FormatAblation(*ablation)).value();
    json["patches"] = PatchesJson(model.config(), ablation->patches);
    Stdout::WriteJson(json);
  } else {
    Stdout::Write(
        FormatTable({{"heads edited", "loss before", "loss after", "rise"},
                     {std::to_string(ablation->edits.size() + ablation->patches.size()),
                      Loss(loss->before), Loss(loss->after), Loss(loss->after - loss->before)}},
                    0));
    Stdout::Write("nats per token of " + std::to_string(loss->tokens) + "\n");
  }
  return Stdout::Finish();
}

int Run(const Flags& flags) {
  const Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  const auto& [model, ids] = *input;
  CatchInterrupt();
  return flags.each ? RunEach(flags, model, ids) : RunTogether(flags, model, ids);
}

}  // namespace

Command AddHeadsAblate(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app =
      heads.AddSubcommand("ablate", "Switch heads off and see what that does to a text's loss");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  app.AddOption("edits", &flags->ablation.edits,
                "The heads and their edits, all applied at once; see below")
      .Type("EDITS|JSON|FILE");
  app.AddFlag("--each", &flags->each,
              "Switch off one head at a time: those that EDITS name, or all");
  AddAblationTexts(app, &flags->ablation);
  AddInt(app, "-c,--context", &flags->session.context, {0},
         "Tokens of the text that are used; 0 = all, up to the model's context and 8192");
  AddThreads(app, &flags->session.threads);
  AddChoice(app, "--math", &flags->session.math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(app, "-o,--output", &flags->format, {"table", "json", "csv"},
            "How to print; csv: with --each");
  app.Footer(std::string(kAblationHelp) +
             "With --each a head's loss costs the layers from its own on. Ctrl-C keeps what is "
             "done.\n"
             "Examples:\n"
             "  manyhead heads ablate -m gemma3-270m -f book.txt 3.1,4.*=0.5\n"
             "  manyhead heads ablate -f book.txt --each -o json");
  app.OnParsed([flags] {
    if (!flags->each && !flags->ablation.Given())
      RejectUsage("ablate", "EDITS, --patch or --each is needed");
    if (flags->each && !flags->ablation.patch.empty())
      RejectUsage("ablate", "--each switches heads off one at a time; expected no --patch");
    if (!flags->each && flags->format == "csv") RejectUsage("ablate", "-o csv needs --each");
  });
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
