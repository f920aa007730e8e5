#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/memory.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/memory_figure.h"
#include "tools/manyhead/memory_fit.h"
#include "tools/manyhead/memory_measure.h"
#include "tools/manyhead/memory_sweep.h"
#include "tools/manyhead/model_path.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/rows.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;

struct Flags {
  std::string model, config, format, weight_type;
  SessionFlags session;
  SweepFlags sweep;
  std::int64_t chunk = SessionOptions{}.chunk;
  std::string figure;
  FitFlags fit;
  double bandwidth = 0;  ///< bytes per second; 0 = not asked, below 0 = to be measured
  std::int64_t decode_tokens = 32;
  bool per_head = false, score = false, measure = false;
  bool from_file = false;  ///< -m or --config
};

constexpr WeightType kWeightTypes[] = {WeightType::kF16,  WeightType::kBf16, WeightType::kF32,
                                       WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_K,
                                       WeightType::kQ6_K};

std::string FlagName(WeightType type) {
  std::string name = WeightTypeName(type);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::optional<WeightType> FindWeightType(const std::string& name) {
  for (const WeightType type : kWeightTypes)
    if (FlagName(type) == name) return type;
  return std::nullopt;
}

Result<ModelShape> ReadConfig(const Flags& flags) {
  const Result<std::string> text = ReadFile(flags.config, true);
  if (!text.ok()) return text.status();
  const std::string& mix = flags.sweep.weight_mix;
  // A mix decides every matrix, whatever the config says of them.
  const std::optional<WeightType> type =
      mix.empty() ? FindWeightType(flags.weight_type) : WeightType::kF16;
  Result<ModelShape> shape = ParseModelShape(*text, type);
  if (shape.ok() && !mix.empty()) shape = MixWeightTypes(*std::move(shape), mix);
  if (!shape.ok() && flags.config != "-")
    return Status(shape.status().code(), flags.config + ": " + shape.status().message());
  return shape;
}

Result<std::vector<std::shared_ptr<const ModelShape>>> Shapes(const Flags& flags) {
  if (!flags.from_file) {
    std::vector<std::string> left_out;
    auto shapes = MakeShapes(flags.sweep, &left_out);
    for (const std::string& what : left_out)
      if (shapes.ok()) Warn(what);
    return shapes;
  }
  Result<ModelShape> shape = Status();
  if (!flags.config.empty()) {
    shape = ReadConfig(flags);
  } else {
    const Result<std::string> path = FindModel(flags.model);
    if (!path.ok()) return path.status();
    shape = ReadModelShape(*path);
  }
  if (!shape.ok()) return shape.status();
  std::vector<std::shared_ptr<const ModelShape>> shapes;
  shapes.push_back(std::make_shared<const ModelShape>(*std::move(shape)));
  return shapes;
}

/// Reports a bad combination of flags as a usage error; a bad file is none.
int Reject(const Flags& flags, const Status& status) {
  const int code = Fail(status);
  return flags.from_file ? code : kExitUsage;
}

/// Prints each warning once, however many rows it concerns.
void PrintWarnings(const std::vector<Json>& rows) {
  std::set<std::string> printed;
  for (const Json& row : rows)
    for (const Json& warning : row["warnings"])
      if (const auto text = warning.get<std::string>(); printed.insert(text).second) Warn(text);
}

/// The rows of a sweep, and the first error.
struct Outcome {
  std::vector<Json> rows;
  Status status;
};

Outcome PlanAll(const Flags& flags, const std::vector<MemoryCase>& cases) {
  Outcome outcome;
  for (const MemoryCase& one : cases) {
    if (Interrupted().load()) break;
    const Result<MemoryPlan> plan = PlanMemory(*one.shape, one.options);
    if (!plan.ok()) {
      outcome.status = plan.status();
      return outcome;
    }
    outcome.rows.push_back(MemoryJson(one, *plan, flags.per_head, flags.bandwidth));
  }
  return outcome;
}

/// Measures each row's case in turn; rows that were not measured because of Ctrl-C or an error are
/// dropped.
void MeasureAll(const Flags& flags, const std::vector<MemoryCase>& cases, Outcome& outcome) {
  MeasureOptions options;
  options.decode_tokens = flags.decode_tokens;
  if (flags.from_file && flags.config.empty()) {
    const Result<std::string> path = FindModel(flags.model);
    if (!path.ok()) {
      outcome.status = path.status();
      return;
    }
    options.model = *path;
  }
  Progress progress("measuring", "combinations");
  const auto total = static_cast<std::int64_t>(outcome.rows.size());
  std::int64_t done = 0;
  for (Json& row : outcome.rows) {
    progress.Update(done, total);
    Result<std::optional<Json>> measured =
        MeasureCase(cases[static_cast<std::size_t>(done)], options);
    if (!measured.ok()) outcome.status = measured.status();
    if (!measured.ok() || !measured->has_value()) break;
    row["measured"] = **std::move(measured);
    ++done;
  }
  outcome.rows.resize(static_cast<std::size_t>(done));
}

/// Adds the share of the roofline that each row's decoding reached.
void AddRoofline(const MemoryCase& one, std::vector<Json>& rows) {
  SessionOptions session = one.options.session;
  session.threads = rows.front()["threads"].get<int>();
  const Roofline roofline = MeasureRooflineInChildProcess(session);
  for (Json& row : rows) {
    Json& measured = row["measured"];
    if (roofline.bytes_per_second <= 0) {
      measured["of_roofline"] = nullptr;
      continue;
    }
    const double bound = roofline.Bound(measured["bytes_per_token"].get<double>(),
                                        row["decode_flops"]["total"].get<double>());
    measured["of_roofline"] = bound * measured["decode_tokens_per_second"].get<double>();
    measured["bandwidth_bytes_per_second"] = roofline.bytes_per_second;
    measured["peak_flops_per_second"] = roofline.flops_per_second;
  }
}

/// Measures the bandwidth of memory with the threads of `one`.
Status MeasureBandwidth(const MemoryCase& one, double* bandwidth) {
  const Result<MemoryPlan> plan = PlanMemory(*one.shape, one.options);
  if (!plan.ok()) return plan.status();
  *bandwidth = MeasureRooflineInChildProcess(plan->session).bytes_per_second;
  if (*bandwidth > 0 || Interrupted().load()) return {};
  return Status(StatusCode::kIoError, "the bandwidth of memory could not be measured");
}

/// The rows of --fit.
int RunFit(const Flags& flags, const std::vector<MemoryCase>& cases) {
  const Result<std::vector<Json>> rows = FitAll(cases, flags.fit);
  if (!rows.ok()) return Reject(flags, rows.status());
  for (const Json& row : *rows) {
    const auto context = row["context"].get<std::int64_t>();
    const auto trained = row["model_context"].get<std::int64_t>();
    if (trained == 0 || context <= trained) continue;
    Warn("contexts above " + std::to_string(trained) + " are more than the model is made for");
    break;
  }
  PrintFits(*rows, flags.format);
  return Stdout::Finish();
}

int Run(Flags flags) {
  if (Status status =
          CheckOutputs(flags.model, {{"--figure", flags.figure}}, {{"--config", flags.config}});
      !status.ok())
    return Fail(status);
  const auto shapes = Shapes(flags);
  if (!shapes.ok()) return Reject(flags, shapes.status());
  MemoryOptions options;
  options.session = ToSessionOptions(flags.session);
  options.session.chunk = flags.chunk;
  options.weights = ToModelOptions(flags.session).weights;
  options.score = flags.score;
  const auto cases = MakeCases(*shapes, flags.sweep, options);
  if (!cases.ok()) return Reject(flags, cases.status());
  CatchInterrupt();
  if (flags.fit.bytes > 0) return RunFit(flags, *cases);
  if (flags.bandwidth < 0)
    if (Status status = MeasureBandwidth(cases->front(), &flags.bandwidth); !status.ok())
      return Fail(status);
  Outcome outcome = PlanAll(flags, *cases);
  if (!outcome.status.ok()) return Reject(flags, outcome.status);
  PrintWarnings(outcome.rows);
  if (flags.measure) MeasureAll(flags, *cases, outcome);
  if (flags.measure && !outcome.rows.empty()) AddRoofline(cases->front(), outcome.rows);
  // Finished rows are printed in any case.
  PrintMemory(outcome.rows, flags.format);
  if (!outcome.status.ok()) return Fail(outcome.status);
  if (!flags.figure.empty())
    if (Status status = WriteMemoryFigure(outcome.rows, flags.figure); !status.ok())
      return Fail(status);
  return Stdout::Finish();
}

/// One policy, JSON, a file of either, or policies separated by commas.
void AddPolicies(App app, std::vector<std::string>* policies) {
  app.AddParsed(
         "--kv-policy",
         [policies](const std::string& text) {
           policies->clear();
           const bool one = text.starts_with('{') || text.find(',') == text.npos ||
                            !ParseKvPolicy(SplitAtCommas(text).front()).ok();
           for (const std::string& item : one ? std::vector{text} : SplitAtCommas(text))
             policies->push_back(ReadKvPolicy("--kv-policy", item));
         },
         "What each KV head keeps: full, window(N), sink(N)+recent(N), these with +margin(N), "
         "budget(N)[+sink(N)][+recent(N)], off, several of them, or JSON, or a file of one")
      .Type("POLICY,...|JSON|FILE");
}

/// --fit and --bandwidth.
void AddAnswers(App app, Flags& flags) {
  app.AddParsed(
         "--fit",
         [&flags](const std::string& text) {
           const std::optional<std::int64_t> bytes = ParseSize(text);
           if (!bytes || *bytes < 1)
             RejectUsage("--fit", "'" + EscapeLine(text) + "' is no number of bytes, such as 64G");
           flags.fit.bytes = *bytes;
         },
         "Find what fits into so much memory: the largest context for each batch, and the largest "
         "batch for each context of -c")
      .Type("BYTES");
  app.AddParsed(
         "--bandwidth",
         [&flags](const std::string& text) {
           const std::optional<double> rate = ParseRate(text);
           if (!rate && text != "measure")
             RejectUsage("--bandwidth", "'" + EscapeLine(text) +
                                            "' is neither bytes per second, such as 80G, nor "
                                            "measure");
           flags.bandwidth = rate.value_or(-1);
         },
         "Also tokens per second that this bandwidth of memory allows a decode step")
      .Type("RATE|measure");
}

void AddShape(App app, Flags& flags) {
  SweepFlags& sweep = flags.sweep;
  AddIntList(app, "--d-model", &sweep.d_models, {1, kMost}, "Width of the model");
  AddIntList(app, "--heads", &sweep.heads, {1, kMost}, "Query heads of a layer");
  AddIntList(app, "--kv-heads", &sweep.kv_heads, {0, kMost},
             "Key/value heads of a layer; 0 = as many as query heads");
  AddIntList(app, "--group", &sweep.groups, {1, kMost},
             "Query heads of each key/value head, instead of --kv-heads")
      .Excludes("--kv-heads");
  AddIntList(app, "--head-dim", &sweep.head_dims, {0, kMost}, "0 = d-model / heads");
  AddIntList(app, "--layers", &sweep.layers, {1, kMost}, "Layers, all equal");
  AddIntList(app, "--d-ff", &sweep.ffn_dims, {0, kMost},
             "Width of the gated feed-forward block; 0 (the default) = none");
  AddIntList(app, "--vocab", &sweep.vocabs, {0, kMost},
             "Rows of the embedding; 0 (the default) = none");
  AddInt(app, "--window", &sweep.shape.window, {0, kMost}, "Tokens a query sees; 0 = all");
  AddInt(app, "--window-pattern", &sweep.shape.window_pattern, {0, 4096},
         "Every n-th layer sees all; 0 = all have the window");
  app.AddFlag("--tied", &sweep.shape.tied_embeddings, "The output matrix is the embedding");
  app.AddFlag("--qkv-bias", &sweep.shape.qkv_bias, "Biases of queries, keys and values");
  app.AddFlag("--qk-norm", &sweep.shape.qk_norm, "A norm of every query and key head");
  app.AddFlag("--post-norms", &sweep.shape.post_norms,
              "Norms also after attention and feed-forward");
  std::vector<std::string> names;
  for (const WeightType type : kWeightTypes) names.push_back(FlagName(type));
  for (std::string& mix : WeightMixNames()) names.push_back(std::move(mix));
  AddChoice(app, "--weight-type", &flags.weight_type, names,
            "How matrices are stored: one type, or a mix as llama.cpp's quantiser chooses it");
}

/// Which answers --fit gives, and for which types and policies unless they are named.
void CheckFit(App app, Flags& flags) {
  if (flags.fit.bytes == 0) return;
  for (const char* flag : {"--measure", "--figure", "--per-head", "--bandwidth"})
    if (app.Given(flag)) RejectBoth(flag, "--fit");
  flags.fit.trained = flags.from_file;
  flags.fit.contexts = app.Given("--context");
  flags.fit.batches = app.Given("--batch") || !flags.fit.contexts;
  SweepFlags& sweep = flags.sweep;
  if (!app.Given("--kv-type"))
    sweep.kv_types = {{KvType::kF16, KvType::kF16},
                      {KvType::kInt8, KvType::kInt8},
                      {KvType::kInt4, KvType::kInt4}};
  if (!app.Given("--kv-policy")) sweep.policies = {"", "sink(4)+recent(4096)"};
}

void CheckFlags(App app, Flags& flags) {
  const char* const shape_flags[] = {"--d-model",  "--heads",     "--kv-heads", "--group",
                                     "--head-dim", "--layers",    "--d-ff",     "--vocab",
                                     "--window",   "--tied",      "--qk-norm",  "--window-pattern",
                                     "--qkv-bias", "--post-norms"};
  const bool config = app.Given("--config");
  flags.from_file = config || app.Given("--model");
  for (const char* flag : shape_flags)
    if (flags.from_file && app.Given(flag)) RejectBoth(flag, config ? "--config" : "--model");
  if (!flags.from_file && (flags.sweep.d_models.empty() || flags.sweep.heads.empty()))
    RejectMissing("-m, --config, or --d-model and --heads");
  if (!config && flags.from_file && app.Given("--weight-type"))
    RejectBoth("--weight-type", "--model");
  if (config && !app.Given("--weight-type")) flags.weight_type.clear();  // the config's own
  if (const auto type = FindWeightType(flags.weight_type))
    flags.sweep.shape.weight_type = *type;
  else
    flags.sweep.weight_mix = flags.weight_type;
  CheckFit(app, flags);
  if (!flags.measure) return;
  if (flags.score || flags.sweep.batches != std::vector<std::int64_t>{1})
    RejectUsage("--measure", "it runs one sequence, and does not score");
  if (!app.Given("--d-ff")) flags.sweep.ffn_widths = 4;
  if (!app.Given("--vocab")) flags.sweep.vocabs = {1024};
}

void AddFigure(App app, Flags* flags) {
  app.AddOption("--figure", &flags->figure,
                "Write a page with memory and speed against head count to FILE (HTML, or SVG by "
                "its name)")
      .Type("FILE")
      .Check([](const std::string& name) {
        for (const char* end : {".html", ".htm", ".svg"})
          if (name.ends_with(end)) return std::string();
        return "'" + EscapeLine(name) + "' does not end with .html, .htm or .svg";
      });
}

constexpr const char* kFooter =
    "Every combination of the lists is planned. Bytes are exact: of pages of the KV cache (KV, "
    "whole\n"
    "pages, after eviction), of a session's buffers (scratch), of tensors (weights). total is "
    "the most\n"
    "that will be resident: weights as they are held, the cache with its tables at its largest, "
    "scratch,\n"
    "tokenizer, and the process itself. FLOPs are those of all `context` tokens; score FLOPs "
    "count\n"
    "every pair of a query and a key, attended those that the causal mask, windows and the policy\n"
    "of each head leave; the score matrix of one layer in f32 is what attention never stores.\n"
    "read/token is what a decode step reads with the context full, weights once for the batch;\n"
    "tokens/s is the most that --bandwidth allows with that.\n"
    "--fit prints the largest context or batch of which total fits, for each type of the cache "
    "and\n"
    "policy (f16, int8 and int4, full and sink(4)+recent(4096), unless they are named).\n"
    "--measure fills each context but for its last tokens as a prompt, decodes those, and puts "
    "beside\n"
    "the plan what its process held at most, cache bytes, speed, and the part of the roofline "
    "decoding\n"
    "reached; without --d-ff and --vocab it takes 4 d-model and 1024.\n"
    "Examples:\n"
    "  manyhead memory -m gemma3-270m -c 1k,32k --kv-type f16,int8\n"
    "  manyhead memory --config config.json -c 128k --batch 1,4 -o json\n"
    "  manyhead memory --d-model 4096 --heads 8,16,32,64 --layers 32 --d-ff 11008 --vocab 32000 "
    "-c 4k\n"
    "  manyhead memory --config config.json --weight-type q4_k_m --fit 64G -c 32k --batch 1,8\n"
    "  manyhead memory -m gemma3-270m --kv-policy 'full,window(1024)' --bandwidth 80G\n"
    "  manyhead memory --measure --d-model 1024 --heads 4,8,16 --kv-heads 0,4,1 --layers 4 -c 2k "
    "--figure heads.html";

}  // namespace

Command AddMemory(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand(
      "memory",
      "Plan parameters, operations and bytes, by layer and head, before loading anything");
  app.AddOption("-m,--model", &flags->model,
                "GGUF file, or the name of a model that tools/fetch_model.py has fetched; its "
                "weights are not read")
      .Type("FILE|NAME");
  app.AddOption("--config", &flags->config, "A Hugging Face config.json; - is standard input")
      .Type("FILE")
      .Excludes("--model");
  AddShape(app, *flags);
  AddIntList(app, "-c,--context", &flags->sweep.contexts, {0, kMost},
             "Tokens held, all of them; 0 = the smaller of the model's context and 8192");
  AddIntList(app, "--batch", &flags->sweep.batches, {1, 1 << 20},
             "Sequences of this many tokens in one cache");
  AddKvTypes(app, &flags->sweep.kv_types);
  AddPolicies(app, &flags->sweep.policies);
  AddAnswers(app, *flags);
  AddChoice(app, "--weights", &flags->session.weights, {"packed", "mapped"},
            "Storage of low-bit weights: copied side by side, or in the file's pages");
  AddThreads(app, &flags->session.threads);
  AddInt(app, "--chunk", &flags->chunk, {1, kMost}, "Most tokens of one step of a prompt");
  app.AddFlag("--score", &flags->score, "Plan for perplexity, which holds logits of 32 tokens");
  app.AddFlag("--per-head", &flags->per_head, "Also by layer and head");
  app.AddFlag("--measure", &flags->measure,
              "Also run each combination in a child process: random weights, or those of -m");
  AddInt(app, "-n,--n-gen", &flags->decode_tokens, {1, 1 << 20},
         "Last tokens of the context that --measure decodes one by one; at most all but the first");
  AddFigure(app, flags.get());
  AddChoice(app, "-o,--output", &flags->format, RowFormats(), "How to print");
  app.Footer(kFooter);
  app.OnParsed([flags, app] { CheckFlags(app, *flags); });
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
