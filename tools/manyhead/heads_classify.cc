#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/model.h"
#include "manyhead/output_file.h"
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
  std::string model, format, conllu, policy, probes;
  TextFlags text;
  SessionFlags session;
  std::int64_t seed = 0;
};

Json DependencyJson(const DependencyScore& score) {
  Json json;
  json["relation"] = score.relation;
  json["direction"] = score.to_head ? "to_head" : "to_dependent";
  json["count"] = score.count;
  json["accuracy"] = score.accuracy;
  json["baseline"] = score.baseline;
  json["offset"] = score.offset;
  return json;
}

Json ScoresJson(const HeadScores& scores) {
  Json json;
  json["previous_token"] = scores.previous_token;
  json["fixed_offset"] = scores.fixed_offset;
  json["offset"] = scores.offset;
  json["duplicate_token"] = scores.duplicate_token;
  json["induction"] = scores.induction;
  json["retrieval"] = scores.retrieval;
  json["sink"] = scores.sink;
  json["local"] = scores.local;
  json["uniformity"] = scores.uniformity;
  json["constancy"] = scores.constancy;
  json["twin"] = scores.twin;
  json["twin_head"] = scores.twin_head < 0 ? Json() : Json(scores.twin_head);
  const DependencyScore* best = BestDependency(scores);
  json["syntactic"] = best == nullptr ? Json() : DependencyJson(*best);
  json["dependencies"] = Json::array();
  for (const DependencyScore& score : scores.dependencies)
    json["dependencies"].push_back(DependencyJson(score));
  return json;
}

Json HeadsJson(const HeadClassification& classification) {
  Json heads = Json::array();
  for (const HeadReport& report : classification.heads) {
    Json json;
    json["layer"] = report.id.layer;
    json["head"] = report.id.head;
    json["kv_head"] = report.kv_head;
    json["class"] = HeadClassName(report.head_class);
    json["scores"] = ScoresJson(report.scores);
    heads.push_back(std::move(json));
  }
  return heads;
}

Json ToJson(const Flags& flags, const Model& model, const HeadClassification& classification) {
  Json json;
  json["model"] = ModelType(model);
  json["model_path"] = model.path();
  json["text"] = flags.text.text || flags.text.file ? TextJson(flags.text) : Json("built in");
  json["seed"] = flags.seed;
  json["math"] = flags.session.math;
  json["conllu"] = flags.conllu.empty() ? Json() : Json(flags.conllu);
  json["heads"] = HeadsJson(classification);
  return json;
}

/// Returns a row for each head; of dependencies the best one alone.
std::vector<Json> CsvRows(const HeadClassification& classification) {
  std::vector<Json> rows;
  for (const HeadReport& report : classification.heads) {
    Json row;
    row["layer"] = report.id.layer;
    row["head"] = report.id.head;
    row["kv_head"] = report.kv_head;
    row["class"] = HeadClassName(report.head_class);
    const Json scores = ScoresJson(report.scores);
    for (const auto& member : scores.items())
      if (member.name != "dependencies" && member.name != "syntactic")
        row[member.name] = member.value;
    const DependencyScore* best = BestDependency(report.scores);
    row["syntactic"] = best == nullptr ? Json() : Json(best->relation);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json ProbesJson(const HeadClassification& classification) {
  Json probes = Json::array();
  for (const Probe& probe : classification.probes) {
    Json json;
    json["kind"] = ProbeKindName(probe.kind);
    if (probe.kind == ProbeKind::kRepeat || probe.kind == ProbeKind::kNeedle) {
      json["begin"] = probe.begin;
      json["count"] = probe.count;
      json["again"] = probe.again;
    }
    json["ids"] = probe.ids;
    probes.push_back(std::move(json));
  }
  return probes;
}

/// Returns the reason for a class, where its name does not say it.
std::string Detail(const HeadReport& report) {
  const HeadScores& scores = report.scores;
  switch (report.head_class) {
    case HeadClass::kFixedOffset:
      return std::to_string(scores.offset) + " back";
    case HeadClass::kSyntactic: {
      const DependencyScore& best = *BestDependency(scores);
      return best.relation + (best.to_head ? " to its head " : " to its dependent ") +
             FormatFixed(best.accuracy, 2) + ", at distance " + std::to_string(best.offset) + " " +
             FormatFixed(best.baseline, 2);
    }
    case HeadClass::kCollapsed:
      if (scores.twin >= HeadThresholds().collapsed)
        return "as head " + std::to_string(scores.twin_head);
      return scores.uniformity >= HeadThresholds().collapsed ? "uniform"
                                                             : "the same for every text";
    default:
      return "";
  }
}

void PrintTable(const HeadClassification& classification) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "head", "KV head", "class", "", "previous", "offset", "duplicate", "induction",
       "retrieval", "sink", "local", "uniform", "constant", "twin"}};
  std::map<HeadClass, int> counts;
  for (const HeadReport& report : classification.heads) {
    const HeadScores& scores = report.scores;
    std::vector<std::string> row = {std::to_string(report.id.layer), std::to_string(report.id.head),
                                    std::to_string(report.kv_head),
                                    HeadClassName(report.head_class), Detail(report)};
    for (const double score : {scores.previous_token, scores.fixed_offset, scores.duplicate_token,
                               scores.induction, scores.retrieval, scores.sink, scores.local,
                               scores.uniformity, scores.constancy, scores.twin})
      row.push_back(FormatFixed(score, 2));
    row[6] += " @" + std::to_string(scores.offset);
    if (scores.twin_head < 0) row.back() = "-";
    rows.push_back(std::move(row));
    ++counts[report.head_class];
  }
  Stdout::Write(FormatTable(rows, 5) + "\n");
  std::string summary;
  for (const auto& [head_class, count] : counts)
    summary +=
        (summary.empty() ? "" : ", ") + std::to_string(count) + " " + HeadClassName(head_class);
  Stdout::Write(std::to_string(classification.heads.size()) + " heads: " + summary + "\n");
}

Result<ClassifyOptions> ToOptions(const Model& model, const Flags& flags) {
  ClassifyOptions options;
  options.seed = static_cast<std::uint64_t>(flags.seed);
  options.math = flags.session.math == "exact" ? MathMode::kExact : MathMode::kFast;
  options.threads = static_cast<int>(flags.session.threads);
  options.cancel = &Interrupted();
  if (flags.text.text || flags.text.file) {
    Result<std::vector<TokenId>> ids = EncodeText(model.tokenizer(), flags.text);
    if (!ids.ok()) return ids.status();
    if (ids->empty())
      return Status(StatusCode::kInvalidArgument, "the text has 0 tokens; expected at least 256");
    options.text = *std::move(ids);
  }
  if (!flags.conllu.empty()) {
    Result<std::string> conllu = ReadFile(flags.conllu, /*settings=*/true);
    if (!conllu.ok()) return conllu.status();
    if (conllu->empty())
      return Status(StatusCode::kInvalidArgument, flags.conllu + ": no sentence; expected one");
    options.conllu = *std::move(conllu);
  }
  return options;
}

Status WriteFiles(const Flags& flags, const Model& model,
                  const HeadClassification& classification) {
  if (!flags.policy.empty()) {
    const auto policies = ClassPolicies(model.config(), classification.heads);
    if (Status status = WriteOutputFile(flags.policy, FormatKvHeads(policies)); !status.ok())
      return status;
  }
  if (flags.probes.empty()) return Status();
  return WriteOutputFile(flags.probes, ProbesJson(classification).dump() + "\n");
}

int Run(const Flags& flags) {
  if (Status status =
          CheckOutputs(flags.model, {{"--policy", flags.policy}, {"--probes", flags.probes}},
                       {{"-f", flags.text.file.value_or("")}, {"--conllu", flags.conllu}});
      !status.ok())
    return Fail(status);
  const Result<Model> model = LoadModel(flags.model, ToModelOptions(flags.session));
  if (!model.ok()) return Fail(model.status());
  Result<ClassifyOptions> options = ToOptions(*model, flags);
  if (!options.ok()) return Fail(options.status());
  CatchInterrupt();
  Progress progress("classifying", "tokens");
  options->on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  const Result<HeadClassification> classification = ClassifyHeads(*model, *options);
  progress.Clear();
  if (!classification.ok()) return Fail(classification.status());
  if (Status status = WriteFiles(flags, *model, *classification); !status.ok()) return Fail(status);
  if (flags.format == "json")
    Stdout::WriteJson(ToJson(flags, *model, *classification));
  else if (flags.format == "csv")
    WriteCsv(CsvRows(*classification));
  else
    PrintTable(*classification);
  return Stdout::Finish();
}

}  // namespace

Command AddHeadsClassify(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app = heads.AddSubcommand("classify", "What each head looks for");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  app.AddOption("--conllu", &flags->conllu,
                "Sentences with dependencies in CoNLL-U, for heads that follow syntax")
      .Type("FILE");
  AddInt(app, "--seed", &flags->seed, {0}, "Seed of the random tokens");
  app.AddOption("--policy", &flags->policy,
                "Write the policy that each KV head needs to FILE, which --kv-policy reads")
      .Type("FILE");
  app.AddOption("--probes", &flags->probes,
                "Write the token ids that scores were measured on to FILE, as JSON")
      .Type("FILE");
  AddThreads(app, &flags->session.threads);
  AddChoice(app, "--math", &flags->session.math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(
      app, "--weights", &flags->session.weights, {"packed", "mapped"},
      "packed: low-bit weights copied side by side at the start; mapped: as the file has them");
  AddChoice(app, "-o,--output", &flags->format, {"table", "json", "csv"}, "How to print");
  app.Footer(
      "Without -p or -f a text that is part of the program is read; with them at least 256 "
      "tokens,\n"
      "of which 512 are used. tools/docs/head_classes.md defines every score and class.\n"
      "Examples:\n"
      "  manyhead heads classify\n"
      "  manyhead heads classify -m gemma3-270m --conllu tools/data/sample.conllu -o json\n"
      "  manyhead heads classify -m gemma3-270m -f book.txt --policy heads.json");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
