#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/circuits.h"
#include "manyhead/head_classes.h"
#include "manyhead/model.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kNone = -1;
constexpr std::size_t kShownLinks = 20;

struct Flags {
  std::string model, format;
  TextFlags text;
  SessionFlags session;
  std::int64_t layer = kNone, head = kNone, seed = 0;
};

/// Everything that is printed.
struct CircuitsReport {
  ModelCircuits circuits;
  std::vector<LayerTerms> terms;
  std::vector<HeadReport> classes;

  const HeadReport& ReportOf(HeadId id) const {
    return *std::find_if(classes.begin(), classes.end(),
                         [&](const HeadReport& report) { return report.id == id; });
  }
  const HeadTerm& TermOf(HeadId id) const {
    return terms[static_cast<std::size_t>(id.layer)].heads[static_cast<std::size_t>(id.head)];
  }
};

Json SpectrumJson(const Spectrum& spectrum, bool values) {
  Json json;
  json["norm"] = spectrum.norm;
  json["effective_rank"] = spectrum.effective_rank;
  json["participation"] = spectrum.participation;
  if (values) json["singular_values"] = spectrum.singular_values;
  return json;
}

Json IdJson(HeadId id) {
  Json json;
  json["layer"] = id.layer;
  json["head"] = id.head;
  return json;
}

Json HeadJson(const CircuitsReport& findings, const HeadCircuit& head, bool values) {
  Json json = IdJson(head.id);
  json["kv_head"] = head.kv_head;
  json["class"] = HeadClassName(findings.ReportOf(head.id).head_class);
  json["qk"] = SpectrumJson(head.qk, values);
  json["ov"] = SpectrumJson(head.ov, values);
  json["output_share"] = findings.TermOf(head.id).share;
  json["output_norm"] = findings.TermOf(head.id).norm;
  return json;
}

Json LayerJson(const LayerTerms& terms) {
  Json json;
  json["layer"] = terms.layer;
  json["heads"] = terms.heads.size();
  json["heads_for_90"] = terms.heads_for_90;
  json["norm"] = terms.norm;
  json["difference"] = terms.difference;
  return json;
}

Json LinkJson(const CircuitsReport& findings, const HeadLink& link) {
  Json json;
  json["from"] = IdJson(link.from);
  json["to"] = IdJson(link.to);
  json["from_class"] = HeadClassName(findings.ReportOf(link.from).head_class);
  json["to_class"] = HeadClassName(findings.ReportOf(link.to).head_class);
  json["q"] = link.scores.query;
  json["k"] = link.scores.key;
  json["v"] = link.scores.value;
  json["rank"] = link.rank;
  json["num_from"] = link.num_from;
  return json;
}

Json ToJson(const CircuitsReport& findings, const Flags& flags) {
  Json json;
  json["baseline"] = findings.circuits.baseline;
  json["heads"] = Json::array();
  for (const HeadCircuit& head : findings.circuits.heads)
    json["heads"].push_back(HeadJson(findings, head, flags.head != kNone));
  json["layers"] = Json::array();
  for (const LayerTerms& terms : findings.terms)
    if (flags.layer == kNone || flags.layer == terms.layer)
      json["layers"].push_back(LayerJson(terms));
  json["links"] = Json::array();
  for (const HeadLink& link : findings.circuits.links)
    json["links"].push_back(LinkJson(findings, link));
  return json;
}

std::string Name(HeadId id) { return std::to_string(id.layer) + "." + std::to_string(id.head); }

void PrintHeads(const CircuitsReport& findings) {
  std::vector<std::vector<std::string>> rows = {{"head", "KV head", "class", "QK rank", "QK part.",
                                                 "OV rank", "OV part.", "|OV|", "share of output",
                                                 "norm"}};
  for (const HeadCircuit& head : findings.circuits.heads) {
    const HeadTerm& term = findings.TermOf(head.id);
    rows.push_back({Name(head.id), std::to_string(head.kv_head),
                    HeadClassName(findings.ReportOf(head.id).head_class),
                    FormatFixed(head.qk.effective_rank, 1), FormatFixed(head.qk.participation, 1),
                    FormatFixed(head.ov.effective_rank, 1), FormatFixed(head.ov.participation, 1),
                    FormatFixed(head.ov.norm, 2), FormatFixed(100 * term.share, 1) + " %",
                    FormatFixed(term.norm, 2)});
  }
  Stdout::Write(FormatTable(rows, 3));
}

void PrintLinks(const CircuitsReport& findings) {
  std::vector<HeadLink> links = findings.circuits.links;
  if (links.empty()) {
    Stdout::Write("\nno links: no head of these feeds a later one that was asked about\n");
    return;
  }
  std::stable_sort(links.begin(), links.end(), [](const HeadLink& a, const HeadLink& b) {
    return a.scores.key > b.scores.key;
  });
  std::vector<std::vector<std::string>> rows = {
      {"from", "class", "to", "class", "K", "Q", "V", "K rank"}};
  for (std::size_t i = 0; i < std::min(links.size(), kShownLinks); ++i) {
    const HeadLink& link = links[i];
    rows.push_back({Name(link.from), HeadClassName(findings.ReportOf(link.from).head_class),
                    Name(link.to), HeadClassName(findings.ReportOf(link.to).head_class),
                    FormatFixed(link.scores.key, 3), FormatFixed(link.scores.query, 3),
                    FormatFixed(link.scores.value, 3),
                    std::to_string(link.rank) + " of " + std::to_string(link.num_from)});
  }
  Stdout::Write("\ncomposition above that of unrelated matrices, " +
                FormatFixed(findings.circuits.baseline, 3) + ":\n" + FormatTable(rows, 4));
  if (links.size() > kShownLinks)
    Stdout::Write("the largest of " + std::to_string(links.size()) + "; -o json has all\n");
}

void PrintTable(const CircuitsReport& findings, const Flags& flags) {
  PrintHeads(findings);
  std::vector<std::vector<std::string>> rows = {{"layer", "heads", "for 90 %", "norm"}};
  for (const LayerTerms& terms : findings.terms)
    if (flags.layer == kNone || flags.layer == terms.layer)
      rows.push_back({std::to_string(terms.layer), std::to_string(terms.heads.size()),
                      std::to_string(terms.heads_for_90), FormatFixed(terms.norm, 3)});
  Stdout::Write("\n" + FormatTable(rows, 0));
  PrintLinks(findings);
}

std::vector<HeadId> HeadsOf(const ModelConfig& config, std::int64_t first, std::int64_t end) {
  std::vector<HeadId> heads;
  for (std::int64_t layer = first; layer < end; ++layer)
    for (std::int64_t h = 0; h < config.layers[static_cast<std::size_t>(layer)].num_heads; ++h)
      heads.push_back({layer, h});
  return heads;
}

std::vector<HeadId> HeadsOf(const std::vector<HeadReport>& reports, HeadClass head_class) {
  std::vector<HeadId> heads;
  for (const HeadReport& report : reports)
    if (report.head_class == head_class) heads.push_back(report.id);
  return heads;
}

/// Without a layer: all heads, and what previous-token heads pass on to induction heads. With one:
/// its heads, or one of them, what they get from every head before and pass on to every head after.
CircuitOptions ToOptions(const ModelConfig& config, const Flags& flags,
                         const std::vector<HeadReport>& classes) {
  CircuitOptions options;
  options.threads = static_cast<int>(flags.session.threads);
  options.cancel = &Interrupted();
  if (flags.layer == kNone) {
    options.from = HeadsOf(classes, HeadClass::kPreviousToken);
    options.to = HeadsOf(classes, HeadClass::kInduction);
    return options;
  }
  options.heads = HeadsOf(config, flags.layer, flags.layer + 1);
  if (flags.head != kNone) options.heads = {{flags.layer, flags.head}};
  options.from = HeadsOf(config, 0, flags.layer);
  options.to = options.heads;
  return options;
}

Status CheckHead(const ModelConfig& config, const Flags& flags) {
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  if (flags.layer >= layers)
    return Status(StatusCode::kInvalidArgument, "layer = " + std::to_string(flags.layer) +
                                                    "; expected 0.." + std::to_string(layers - 1));
  if (flags.layer == kNone) return Status();
  const std::int64_t heads = config.layers[static_cast<std::size_t>(flags.layer)].num_heads;
  if (flags.head >= heads)
    return Status(StatusCode::kInvalidArgument, "head = " + std::to_string(flags.head) +
                                                    " of layer " + std::to_string(flags.layer) +
                                                    "; expected 0.." + std::to_string(heads - 1));
  return Status();
}

Result<CircuitsReport> Find(const Model& model, const Flags& flags) {
  CircuitsReport findings;
  ClassifyOptions classify;
  classify.seed = static_cast<std::uint64_t>(flags.seed);
  classify.threads = static_cast<int>(flags.session.threads);
  classify.cancel = &Interrupted();
  if (flags.text.text || flags.text.file) {
    Result<std::vector<TokenId>> ids = EncodeText(model.tokenizer(), flags.text);
    if (!ids.ok()) return ids.status();
    if (ids->empty())
      return Status(StatusCode::kInvalidArgument, "the text has 0 tokens; expected at least 256");
    classify.text = *std::move(ids);
  }
  Progress progress("classifying", "tokens");
  classify.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  Result<HeadClassification> classes = ClassifyHeads(model, classify);
  progress.Clear();
  if (!classes.ok()) return classes.status();
  findings.classes = std::move(classes->heads);
  const std::vector<TokenId>& text = classes->probes.front().ids;
  TermOptions terms;
  terms.threads = static_cast<int>(flags.session.threads);
  const std::size_t used = std::min(text.size(), static_cast<std::size_t>(kMostTermTokens));
  Result<std::vector<LayerTerms>> layers = MeasureTerms(model, {text.data(), used}, terms);
  if (!layers.ok()) return layers.status();
  findings.terms = *std::move(layers);
  Progress describing("describing", "layers");
  CircuitOptions options = ToOptions(model.config(), flags, findings.classes);
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    describing.Update(done, total);
  };
  Result<ModelCircuits> circuits = DescribeCircuits(model, options);
  if (!circuits.ok()) return circuits.status();
  findings.circuits = *std::move(circuits);
  return findings;
}

int Run(const Flags& flags) {
  const Result<Model> model = LoadModel(flags.model, ToModelOptions(flags.session));
  if (!model.ok()) return Fail(model.status());
  if (Status status = CheckHead(model->config(), flags); !status.ok()) return Fail(status);
  CatchInterrupt();
  const Result<CircuitsReport> findings = Find(*model, flags);
  if (!findings.ok()) return Fail(findings.status());
  if (flags.format == "json")
    Stdout::WriteJson(ToJson(*findings, flags));
  else
    PrintTable(*findings, flags);
  return Stdout::Finish();
}

}  // namespace

Command AddHeadsCircuits(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app = heads.AddSubcommand("circuits", "What heads read and write, and pass on");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  const Option layer = AddInt(app, "--layer", &flags->layer, {0},
                              "One layer, and how its heads compose with each earlier head")
                           .Default("");
  AddInt(app, "--head", &flags->head, {0}, "One head of it").Default("").Needs(layer);
  AddInt(app, "--seed", &flags->seed, {0}, "Seed of the random tokens");
  AddThreads(app, &flags->session.threads);
  AddChoice(
      app, "--weights", &flags->session.weights, {"packed", "mapped"},
      "packed: low-bit weights copied side by side at the start; mapped: as the file has them");
  AddChoice(app, "-o,--output", &flags->format, {"table", "json"}, "How to print");
  app.Footer(
      "W_QK and W_OV of each head: effective rank (entropy of singular values), participation, "
      "norm;\n"
      "each head's part in what its layer writes, over a text as for classify; composition with\n"
      "earlier heads by way of keys, queries and values. See tools/docs/head_classes.md.\n"
      "Examples:\n"
      "  manyhead heads circuits\n"
      "  manyhead heads circuits -m gemma3-270m --layer 5 --head 1 -o json");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
