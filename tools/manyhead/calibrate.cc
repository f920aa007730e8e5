#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/calibrate.h"
#include "manyhead/model.h"
#include "manyhead/output_file.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format, save;
  TextFlags text;
  SessionFlags session;
  ByteBudget budget;
  std::vector<std::string> types;
  bool no_evict = false;
  std::int64_t probe_tokens = 512;
};

CalibrateOptions ToOptions(const Flags& flags) {
  CalibrateOptions options;
  options.budget_bytes = flags.budget.bytes;
  options.budget_fraction = flags.budget.fraction;
  options.context = flags.session.context;
  options.types.clear();
  for (const std::string& name : flags.types) options.types.push_back(*ParseKvType(name));
  options.evict = !flags.no_evict;
  options.math = flags.session.math == "exact" ? MathMode::kExact : MathMode::kFast;
  options.threads = static_cast<int>(flags.session.threads);
  options.probe_tokens = flags.probe_tokens;
  options.cancel = &Interrupted();
  return options;
}

Json ToJson(const KvLoss& loss) {
  Json json;
  json["kv_bytes"] = loss.bytes;
  json["mean_nll"] = loss.mean_nll;
  json["fit_nll"] = loss.fit_nll;
  json["held_out_nll"] = loss.held_out_nll;
  return json;
}

Json ToJson(const Calibration& calibration) {
  Json json;
  json["context"] = calibration.context;
  json["fit_tokens"] = calibration.fit_tokens;
  json["held_out_tokens"] = calibration.held_out_tokens;
  json["budget_bytes"] = calibration.budget_bytes;
  json["before"] = ToJson(calibration.before);
  json["after"] = ToJson(calibration.after);
  json["rise"] = calibration.after.mean_nll - calibration.before.mean_nll;
  json["held_out_rise"] = calibration.after.held_out_nll - calibration.before.held_out_nll;
  json["estimated_rise"] = calibration.estimated_rise;
  json["verified"] = calibration.verified;
  json["interrupted"] = calibration.interrupted;
  json["candidates"] = Json::array();
  for (const KvLoss& loss : calibration.candidates) json["candidates"].push_back(ToJson(loss));
  json["evaluated_tokens"] = calibration.evaluated_tokens;
  json["policy"] = ParseJson(FormatKvHeads(calibration.heads)).value();
  return json;
}

std::vector<std::string> LossRow(const char* name, const KvLoss& loss, const KvLoss& before) {
  const auto number = [](double value) {
    return std::isnan(value) ? std::string("unknown") : FormatFixed(value, 4);
  };
  const double share = static_cast<double>(loss.bytes) / static_cast<double>(before.bytes);
  return {name,
          FormatBytes(static_cast<double>(loss.bytes)),
          FormatFixed(100 * share, 1) + " %",
          number(loss.mean_nll),
          number(loss.fit_nll),
          number(loss.held_out_nll)};
}

/// Formats how many heads got which types and policy, the most frequent first.
std::string FormatMix(const std::vector<std::vector<KvHeadParams>>& heads) {
  std::map<std::string, int> counts;
  for (const std::vector<KvHeadParams>& layer : heads)
    for (const KvHeadParams& head : layer) {
      const bool off = head.policy.kind == KvPolicyKind::kOff;
      ++counts[off ? "off"
                   : FormatKvTypes({head.k_type, head.v_type}) + "  " +
                         FormatKvPolicy(head.policy)];
    }
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted)
    text += std::to_string(count) + (count == 1 ? " KV head   " : " KV heads  ") + name + "\n";
  return text;
}

void PrintTable(const Calibration& calibration) {
  const KvLoss &before = calibration.before, &after = calibration.after;
  Stdout::Write(FormatTable({{"", "KV bytes", "of f16", "mean NLL", "fit", "held out"},
                             LossRow("f16, every token", before, before),
                             LossRow("calibrated", after, before),
                             {"rise", "", "", FormatFixed(after.mean_nll - before.mean_nll, 4),
                              FormatFixed(after.fit_nll - before.fit_nll, 4),
                              FormatFixed(after.held_out_nll - before.held_out_nll, 4)}},
                            1));
  Stdout::Write("\n" + FormatMix(calibration.heads));
  Stdout::Write("context " + std::to_string(calibration.context) + ", " +
                std::to_string(calibration.fit_tokens) + " tokens to choose by, " +
                std::to_string(calibration.held_out_tokens) + " held out; " +
                std::to_string(calibration.candidates.size()) + " mixes scored\n");
}

int Run(const Flags& flags) {
  if (Status status = CheckOutputs(flags.model, {{"--save", flags.save}},
                                   {{"-f", flags.text.file.value_or("")}});
      !status.ok())
    return Fail(status);
  const Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  const auto& [model, ids] = *input;
  CatchInterrupt();
  Progress progress("calibrating", "tokens");
  CalibrateOptions options = ToOptions(flags);
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  const Result<Calibration> calibration = CalibrateKv(model, ids, options);
  progress.Clear();
  if (!calibration.ok()) return Fail(calibration.status());
  if (calibration->interrupted)
    std::fprintf(stderr, "interrupted: %s\n",
                 calibration->verified ? "the best combination scored so far"
                                       : "a combination from estimates, not scored");
  if (!flags.save.empty())
    if (Status status = WriteOutputFile(flags.save, FormatKvHeads(calibration->heads));
        !status.ok())
      return Fail(status);
  if (flags.format == "json")
    Stdout::WriteJson(ToJson(*calibration));
  else if (flags.format == "policy")
    Stdout::Write(FormatKvHeads(calibration->heads));
  else
    PrintTable(*calibration);
  return Stdout::Finish();
}

void AddBudget(App app, ByteBudget* budget) {
  app.AddParsed(
         "--budget",
         [=](const std::string& text) {
           const std::optional<ByteBudget> parsed = ParseByteBudget(text);
           if (!parsed)
             RejectUsage("--budget", "'" + EscapeLine(text) +
                                         "' is not a share such as 40%, at most 200%, nor "
                                         "bytes such as 12M or 12582912, above 0");
           *budget = *parsed;
         },
         "Most bytes of the cache: a share of what f16 takes for the context, or bytes, K, M or G "
         "for 1024-fold")
      .Type("N%|BYTES")
      .Required();
}

}  // namespace

Command AddCalibrate(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand(
      "calibrate", "Choose how each KV head is stored, and what of it, within a budget of bytes");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  AddBudget(app, &flags->budget);
  app.AddOption("-s,--save", &flags->save, "Write the result to FILE, which --kv-policy reads")
      .Type("FILE");
  AddInt(app, "-c,--context", &flags->session.context, {0},
         "Tokens the budget is for, and of the text that are used, at least 256; 0 = the text's, "
         "up to the model's and 8192");
  AddChoiceList(app, "--types", &flags->types, {"f32", "f16", "bf16", "int8", "int4"},
                "Types that keys and values may have");
  flags->types = {"f32", "f16", "bf16", "int8", "int4"};
  app.Find("--types").Default("f32,f16,bf16,int8,int4");
  app.AddFlag("--no-evict", &flags->no_evict,
              "Types only: every head keeps every token the model's own window shows it");
  AddInt(app, "--probe-tokens", &flags->probe_tokens, {64},
         "Tokens of the pass that tries one head");
  AddThreads(app, &flags->session.threads);
  AddChoice(app, "--math", &flags->session.math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(
      app, "--weights", &flags->session.weights, {"packed", "mapped"},
      "packed: low-bit weights copied side by side at the start; mapped: as the file has them");
  AddChoice(app, "-o,--output", &flags->format, {"text", "json", "policy"},
            "Output format; policy: only the text that --kv-policy reads");
  app.Footer(
      "Every third run of 64 tokens is held out: it takes no part in the choice, so that its rise\n"
      "in loss is what other text may expect. At most 6 * context + KV heads * probe tokens are\n"
      "evaluated. Ctrl-C ends the search with the best result so far.\n"
      "Examples:\n"
      "  manyhead calibrate -m gemma3-270m -f book.txt --budget 40% -s policy.json\n"
      "  manyhead generate -m gemma3-270m -p 'The sky is' --kv-policy policy.json\n"
      "  manyhead calibrate -f book.txt --budget 12M -c 4096 --types f16,int8,int4 -o json");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
