#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/prune.h"
#include "manyhead/session.h"
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
  std::string model, format, save, gguf;
  TextFlags text;
  SessionFlags session;
  float max_rise = 0;
  std::int64_t max_kv_heads = 0;
  bool uniform = false, widen = false;
};

/// The memory and the speed of a model at the end of the text.
struct Cost {
  std::int64_t kv_bytes = 0;
  std::int64_t weight_bytes = 0;
  double prefill_rate = 0;  ///< tokens per second
  double decode_rate = 0;
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Decodes some tokens after the text; their ids do not matter.
Result<Cost> MeasureCost(const Model& model, const Flags& flags, std::span<const TokenId> ids,
                         const std::string& kv_policy) {
  constexpr std::size_t kDecoded = 32;
  SessionOptions options = ToSessionOptions(flags.session);
  options.context = static_cast<std::int64_t>(ids.size() + kDecoded);
  options.kv_policy = kv_policy;
  Result<Session> session = Session::Create(model, options);
  if (!session.ok()) return session.status();
  const auto start = std::chrono::steady_clock::now();
  if (Status status = session->Append(ids, RowRole::kPrefill).status(); !status.ok()) return status;
  Cost cost;
  cost.prefill_rate = static_cast<double>(ids.size()) / SecondsSince(start);
  cost.kv_bytes = session->cache().usage().used_bytes;
  cost.weight_bytes = model.weight_bytes();
  const auto decode = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kDecoded; ++i)
    if (Status status = session->Append(ids.subspan(i, 1)).status(); !status.ok()) return status;
  cost.decode_rate = static_cast<double>(kDecoded) / SecondsSince(decode);
  return cost;
}

/// Measures the pruned model: the file that was written, or the policy.
Result<Cost> MeasureCostAfter(const Model& model, const Flags& flags, const Pruning& pruning,
                              std::span<const TokenId> ids) {
  if (flags.gguf.empty()) return MeasureCost(model, flags, ids, FormatRemoved(pruning.removed));
  const Result<Model> written = Model::Load(flags.gguf, ToModelOptions(flags.session));
  if (!written.ok()) return written.status();
  return MeasureCost(*written, flags, ids, "");
}

Json ToJson(const PruneLoss& loss, const Cost& cost) {
  Json json;
  json["mean_nll"] = loss.mean;
  json["fit_nll"] = loss.fit;
  json["held_out_nll"] = loss.held_out;
  json["kv_bytes"] = cost.kv_bytes;
  json["weight_bytes"] = cost.weight_bytes;
  json["prefill_tokens_per_second"] = cost.prefill_rate;
  json["decode_tokens_per_second"] = cost.decode_rate;
  return json;
}

Json ToJson(const Pruning& pruning, const Cost& before, const Cost& after) {
  Json json;
  json["tokens"] = pruning.tokens;
  json["held_out_tokens"] = pruning.held_out_tokens;
  json["removed"] = Json::array();
  for (const KvHeadId& id : pruning.removed)
    json["removed"].push_back({{"layer", id.layer}, {"kv_head", id.kv_head}});
  json["before"] = ToJson(pruning.before, before);
  json["after"] = ToJson(pruning.after, after);
  json["fit_rise"] = pruning.after.fit - pruning.before.fit;
  json["held_out_rise"] = pruning.after.held_out - pruning.before.held_out;
  json["passes"] = pruning.passes;
  json["interrupted"] = pruning.interrupted;
  json["effects"] = Json::array();
  for (const KvHeadEffect& effect : pruning.effects)
    json["effects"].push_back({{"layer", effect.kv_head.layer},
                               {"kv_head", effect.kv_head.kv_head},
                               {"fit_nll_after", effect.fit_after}});
  json["policy"] = ParseJson(FormatRemoved(pruning.removed)).value();
  return json;
}

std::string FormatHeads(const Pruning& pruning) {
  std::string text;
  for (std::size_t i = 0; i < pruning.removed.size(); ++i) {
    const KvHeadId& id = pruning.removed[i];
    const bool same = i > 0 && pruning.removed[i - 1].layer == id.layer;
    if (!same) text += (i == 0 ? "" : "\n") + ("layer " + std::to_string(id.layer)) + "  KV head ";
    text += (same ? ", " : "") + std::to_string(id.kv_head);
  }
  return text.empty() ? "no KV head can go" : text;
}

void PrintTable(const Pruning& pruning, const Cost& before, const Cost& after) {
  std::vector<std::vector<std::string>> rows = {{"", "before", "after", "change"}};
  const auto loss = [&](const char* name, double from, double to) {
    rows.push_back({name, FormatFixed(from, 4), FormatFixed(to, 4), FormatFixed(to - from, 4)});
  };
  const auto share = [](double from, double to) {
    return FormatFixed(from > 0 ? 100 * (to / from - 1) : 0, 1) + " %";
  };
  const auto bytes = [&](const char* name, std::int64_t from, std::int64_t to) {
    const auto a = static_cast<double>(from), b = static_cast<double>(to);
    rows.push_back({name, FormatBytes(a), FormatBytes(b), share(a, b)});
  };
  const auto rate = [&](const char* name, double from, double to) {
    rows.push_back({name, FormatFixed(from, 1), FormatFixed(to, 1), share(from, to)});
  };
  loss("mean NLL", pruning.before.mean, pruning.after.mean);
  loss("of tokens to choose by", pruning.before.fit, pruning.after.fit);
  loss("held out", pruning.before.held_out, pruning.after.held_out);
  bytes("KV bytes", before.kv_bytes, after.kv_bytes);
  bytes("weights", before.weight_bytes, after.weight_bytes);
  rate("prefill tokens/s", before.prefill_rate, after.prefill_rate);
  rate("decode tokens/s", before.decode_rate, after.decode_rate);
  Stdout::Write(FormatTable(rows, 1) + "\n" + FormatHeads(pruning) + "\n");
  Stdout::Write(std::to_string(pruning.removed.size()) + " of " +
                std::to_string(pruning.effects.size()) + " KV heads removed; " +
                std::to_string(pruning.tokens) + " tokens, " +
                std::to_string(pruning.held_out_tokens) + " held out; " +
                std::to_string(pruning.passes) + " sets of heads tried\n");
}

Result<Pruning> Prune(const Flags& flags, const Model& model, std::span<const TokenId> ids) {
  Progress progress("removing heads", "passes");
  PruneOptions options;
  options.text = ToHeadTextOptions(flags.session);
  options.text.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  options.max_rise = static_cast<double>(flags.max_rise);
  options.max_kv_heads = flags.max_kv_heads;
  options.uniform = flags.uniform;
  return PruneHeads(model, ids, options);
}

Status WriteFiles(const Flags& flags, const Model& model, const Pruning& pruning) {
  if (!flags.save.empty())
    if (Status status = WriteRemoved(pruning.removed, flags.save); !status.ok()) return status;
  if (flags.gguf.empty()) return Status();
  const SlowNotice notice("writing " + flags.gguf);
  return WritePrunedModel(model, pruning.removed, flags.gguf, {.widen = flags.widen});
}

int Run(const Flags& flags) {
  if (Status status = CheckOutputs(flags.model, {{"--save", flags.save}, {"--gguf", flags.gguf}},
                                   {{"-f", flags.text.file.value_or("")}});
      !status.ok())
    return Fail(status);
  const Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  const auto& [model, ids] = *input;
  CatchInterrupt();
  const Result<Pruning> pruning = Prune(flags, model, ids);
  if (!pruning.ok()) return Fail(pruning.status());
  if (pruning->interrupted) std::fprintf(stderr, "interrupted: more heads might go\n");
  if (Status status = WriteFiles(flags, model, *pruning); !status.ok()) return Fail(status);
  const auto used = std::span(ids).first(static_cast<std::size_t>(pruning->tokens));
  const Result<Cost> before = MeasureCost(model, flags, used, "");
  if (!before.ok()) return Fail(before.status());
  const Result<Cost> after = MeasureCostAfter(model, flags, *pruning, used);
  if (!after.ok()) return Fail(after.status());
  if (flags.format == "json")
    Stdout::WriteJson(ToJson(*pruning, *before, *after));
  else if (flags.format == "policy")
    Stdout::Write(FormatRemoved(pruning->removed));
  else
    PrintTable(*pruning, *before, *after);
  return Stdout::Finish();
}

void AddFiles(App app, Flags* flags) {
  app.AddOption("-s,--save", &flags->save,
                "Write which KV heads are off to FILE, which --kv-policy reads")
      .Type("FILE");
  const Option gguf =
      app.AddOption("--gguf", &flags->gguf, "Write the model without these heads to FILE")
          .Type("FILE");
  app.AddFlag("--uniform", &flags->uniform,
              "Remove as many KV heads from every layer: programs other than this one read no "
              "other files");
  app.AddFlag("--widen", &flags->widen,
              "Store W_O of a layer as F32 where its heads end inside a block of its type")
      .Needs(gguf);
}

}  // namespace

Command AddHeadsPrune(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app = heads.AddSubcommand(
      "prune", "Remove the KV heads, with their query heads, that a text misses least");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  AddReal(app, "--max-rise", &flags->max_rise, {},
          "Most that the loss of the tokens to choose by may rise, in nats")
      .Required();
  AddInt(app, "--heads", &flags->max_kv_heads, {0}, "Most KV heads to remove; 0 = no limit");
  AddFiles(app, flags.get());
  AddInt(app, "-c,--context", &flags->session.context, {0},
         "Tokens of the text that are used, at least 256; 0 = all, up to the model's context and "
         "8192");
  AddThreads(app, &flags->session.threads);
  AddChoice(app, "--math", &flags->session.math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(app, "-o,--output", &flags->format, {"table", "json", "policy"},
            "Output format; policy: only the text that --kv-policy reads");
  app.Footer(
      "Every third run of 64 tokens is held out: it takes no part in the choice, so that its rise\n"
      "in loss is what other text may expect. Every layer keeps a KV head. Bytes and speed are\n"
      "those at the end of the text, after with the written model or the policy.\n"
      "Examples:\n"
      "  manyhead heads prune -m qwen2.5-coder-0.5b -f book.txt --max-rise 0.02 -s policy.json\n"
      "  manyhead generate -m qwen2.5-coder-0.5b -p 'def f(' --kv-policy policy.json\n"
      "  manyhead heads prune -f book.txt --max-rise 0.1 --heads 4 --gguf smaller.gguf");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
