#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/output_file.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/heads_report_data.h"
#include "tools/manyhead/heads_report_page.h"
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
  std::string model, output, metric = "entropy", head = "0.0", classes, effects;
  TextFlags text;
  SessionFlags session;
  HeadProfileOptions profile{.every = 4};
  std::int64_t tokens = HeadsReportOptions{}.tokens;
  bool ascii = false, classify = false;
};

/// Parses "3.5": layer and head.
std::optional<HeadId> ParseHead(const std::string& text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const auto layer = ParseInt(std::string_view(text).substr(0, dot));
  const auto head = ParseInt(std::string_view(text).substr(dot + 1));
  if (!layer || !head) return std::nullopt;
  return HeadId{*layer, *head};
}

/// Returns the classes of all heads, in the form of --classes.
Result<std::string> Classify(const Model& model, const Flags& flags) {
  Progress progress("classifying", "tokens");
  ClassifyOptions options;
  options.math = flags.session.math == "exact" ? MathMode::kExact : MathMode::kFast;
  options.threads = static_cast<int>(flags.session.threads);
  options.cancel = &Interrupted();
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.Update(done, total);
  };
  const Result<HeadClassification> classes = ClassifyHeads(model, options);
  if (!classes.ok()) return classes.status();
  Json json = Json::array();
  for (const HeadReport& head : classes->heads)
    json.push_back({{"layer", head.id.layer},
                    {"head", head.id.head},
                    {"class", HeadClassName(head.head_class)}});
  return json.dump();
}

Result<HeadsReportOptions> ReadOptions(const Flags& flags) {
  HeadsReportOptions options;
  options.tokens = flags.tokens;
  options.profile = flags.profile;
  for (const auto& [path, text] :
       {std::pair(&flags.classes, &options.classes), std::pair(&flags.effects, &options.effects)}) {
    if (path->empty()) continue;
    Result<std::string> read = ReadFile(*path, true);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  return options;
}

int Run(const Flags& flags) {
  if (Status status = CheckOutputs(flags.model, {{"--output", flags.output}},
                                   {{"-f", flags.text.file.value_or("")},
                                    {"--classes", flags.classes},
                                    {"--effects", flags.effects}});
      !status.ok())
    return Fail(status);
  Result<HeadsReportOptions> options = ReadOptions(flags);
  if (!options.ok()) return Fail(options.status());
  const Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  const auto& [model, ids] = *input;
  CatchInterrupt();
  if (flags.classify) {
    Result<std::string> classes = Classify(model, flags);
    if (!classes.ok()) return Fail(classes.status());
    options->classes = *std::move(classes);
  }
  const Result<HeadsReport> report =
      CollectHeadsReport(model, ToSessionOptions(flags.session), ids, *options);
  if (!report.ok()) return Fail(report.status());
  const Result<std::string> page =
      flags.ascii ? HeadsReportText(*report, flags.metric, *ParseHead(flags.head))
                  : Result<std::string>(HeadsReportPage(*report));
  if (!page.ok()) return Fail(page.status());
  if (flags.output.empty()) {
    Stdout::Write(*page);
    return Stdout::Finish();
  }
  if (Status status = WriteOutputFile(flags.output, *page); !status.ok()) return Fail(status);
  Stdout::Write(EscapeLine(flags.output) + ": " + std::to_string(report->heads.size()) +
                " heads, " + std::to_string(report->tokens.size()) + " tokens, " +
                FormatBytes(static_cast<double>(page->size())) + "\n");
  return Stdout::Finish();
}

void AddAscii(App app, Flags* flags) {
  app.AddFlag("--ascii", &flags->ascii, "A text instead, printed unless -o names a file");
  app.AddOption("--metric", &flags->metric, "With --ascii: the metric that the grid shows")
      .Type("KEY")
      .ShowDefault();
  app.AddOption("--head", &flags->head,
                "With --ascii: the head whose weights are shown, as LAYER.HEAD")
      .Type("L.H")
      .ShowDefault()
      .Check([](const std::string& text) {
        return ParseHead(text) ? "" : "'" + EscapeLine(text) + "' is not LAYER.HEAD, as 3.5";
      });
}

}  // namespace

Command AddHeadsReport(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app = heads.AddSubcommand("report", "One page to look into every head");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  app.AddOption("-o,--output", &flags->output, "The page to write").Type("FILE");
  AddAscii(app, flags.get());
  const Option classes = app.AddOption("--classes", &flags->classes,
                                       "File with the output of `heads classify -o json`")
                             .Type("FILE");
  app.AddFlag("--classify", &flags->classify, "Classify the heads now").Excludes(classes);
  app.AddOption("--effects", &flags->effects,
                "File with the output of `heads ablate --each -o json`")
      .Type("FILE");
  AddInt(app, "--tokens", &flags->tokens, {1, 512},
         "Tokens whose weights are shown; fewer where the page would exceed about 8 MiB");
  AddInt(app, "--every", &flags->profile.every, {1},
         "Measure the weights of every n-th token for the numbers");
  AddInt(app, "--sink-tokens", &flags->profile.sink_tokens, {0}, "First tokens that count as sink");
  AddInt(app, "--recent", &flags->profile.recent, {1}, "Last tokens that count as recent");
  AddThreads(app, &flags->session.threads);
  AddContext(app, &flags->session);
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  app.Footer(
      "The page loads no other file: a grid of all heads by any number, the weights of one "
      "or\n"
      "two heads over the text's first tokens, memory by head. FILE#3.5,4.2 opens with these "
      "heads.\n"
      "Examples:\n"
      "  manyhead heads report -m gemma3-270m -f book.txt -o report.html\n"
      "  manyhead heads report -p 'x7k2qz x7k2qz x7k' --every 1 --ascii --head 1.0");
  app.OnParsed([flags] {
    if (flags->output.empty() && !flags->ascii)
      RejectUsage("heads report", "-o FILE or --ascii is needed");
  });
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
