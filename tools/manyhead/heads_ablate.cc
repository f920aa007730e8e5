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

Json ToJson(const HeadEffects& effects) {
  Json list = Json::array();
  for (const HeadEffect& effect : effects.effects) {
    Json entry;
    entry["layer"] = effect.head.layer;
    entry["head"] = effect.head.head;
    entry["loss_before"] = effects.loss_before;
    entry["loss_after"] = effect.loss_after;
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
  if (flags.format == "json")
    Stdout::WriteJson(ToJson(*effects));
  else
    PrintTable(model.config(), *effects);
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
    Json json;
    json["tokens"] = loss->tokens;
    json["loss_before"] = loss->before;
    json["loss_after"] = loss->after;
    json["rise"] = loss->after - loss->before;
    json["edits"] = ParseJson(FormatAblation(*ablation)).value();
    Stdout::WriteJson(json);
  } else {
    Stdout::Write(FormatTable({{"heads edited", "loss before", "loss after", "rise"},
                               {std::to_string(ablation->edits.size()), Loss(loss->before),
                                Loss(loss->after), Loss(loss->after - loss->before)}},
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
  AddAblationMeans(app, &flags->ablation);
  AddInt(app, "-c,--context", &flags->session.context, {0},
         "Tokens of the text that are used; 0 = all, up to the model's context and 8192");
  AddThreads(app, &flags->session.threads);
  AddChoice(app, "--math", &flags->session.math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(app, "-o,--output", &flags->format, {"table", "json"}, "How to print");
  app.Footer(std::string(kAblationHelp) +
             "With --each a head's loss costs the layers from its own on. Ctrl-C keeps what is "
             "done.\n"
             "Examples:\n"
             "  manyhead heads ablate -m gemma3-270m -f book.txt 3.1,4.*=0.5\n"
             "  manyhead heads ablate -f book.txt --each -o json");
  app.OnParsed([flags] {
    if (!flags->each && flags->ablation.edits.empty())
      RejectUsage("ablate", "EDITS or --each is needed");
  });
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
