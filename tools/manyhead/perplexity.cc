#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tools/manyhead/ablate_flags.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/nll_windows.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  TextFlags text;
  std::optional<std::string> ids_file;
  SessionFlags session;
  AblationFlags ablation;
  bool per_token = false;
};

/// Tokens scored by one call, so that progress can be shown and Ctrl-C is noticed.
constexpr std::int64_t kStep = 512;

Result<std::vector<TokenId>> ReadIds(const Flags& flags, const Tokenizer& tokenizer) {
  if (!flags.ids_file) return EncodeText(tokenizer, flags.text);
  const Result<std::string> text = ReadFile(*flags.ids_file);
  if (!text.ok()) return text.status();
  return ParseIds(*text);
}

struct Total {
  double nll = 0;
  std::int64_t predicted = 0;
  std::vector<double> losses{};  ///< loss of each token of the text; NaN where it was not predicted
};

/// Appends one window to an empty session and adds its scores to `total`.
Status ScoreWindow(Session& session, std::span<const TokenId> ids, std::int64_t first_scored,
                   std::int64_t shift, Progress& progress, std::int64_t all, Total* total) {
  const auto size = static_cast<std::int64_t>(ids.size());
  std::vector<double> nll(kStep);
  for (std::int64_t begin = 0; begin + 1 < size && !Interrupted().load();) {
    // The last token of a step is evaluated again in the next, which scores what follows it.
    const std::int64_t count = std::min(kStep, size - begin);
    if (Status status = session.Truncate(begin); !status.ok()) return status;
    if (Status status = session.Score(ids.subspan(begin, count), std::span(nll).first(count - 1));
        !status.ok())
      return status;
    for (std::int64_t i = 0; i + 1 < count; ++i) {
      if (begin + i + 1 < first_scored) continue;
      total->nll += nll[i];
      ++total->predicted;
      total->losses[static_cast<std::size_t>(shift + begin + i + 1)] = nll[i];
    }
    begin += count - 1;
    progress.Update(total->predicted, all);
  }
  return {};
}

Status ScoreAll(Session& session, const std::vector<TokenId>& ids, std::optional<TokenId> bos,
                Total* total) {
  Progress progress("scoring", "tokens");
  const auto size = static_cast<std::int64_t>(ids.size());
  for (const NllWindow& window : NllWindows(size, session.context(), bos.has_value())) {
    std::vector<TokenId> tokens;
    if (window.add_bos) tokens.push_back(*bos);
    const std::int64_t shift = window.begin - static_cast<std::int64_t>(tokens.size());
    tokens.insert(tokens.end(), ids.begin() + window.begin, ids.begin() + window.end);
    if (Status status = session.Truncate(0); !status.ok()) return status;
    if (Status status = ScoreWindow(session, tokens, window.first_scored - shift, shift, progress,
                                    size - 1, total);
        !status.ok())
      return status;
    if (Interrupted().load()) break;
  }
  return {};
}

/// Returns a row for each token of the text: its number, id, text and loss, which is null for the
/// first.
std::vector<Json> TokenRows(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                            const std::vector<double>& losses) {
  std::vector<Json> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Json row;
    row["position"] = i;
    row["id"] = ids[i];
    row["text"] = tokenizer.Piece(ids[i], /*special=*/true);
    row["nll"] = losses[i];  // NaN reads null
    rows.push_back(std::move(row));
  }
  return rows;
}

void PrintTokens(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                 const std::vector<double>& losses) {
  std::vector<std::vector<std::string>> table = {{"position", "id", "NLL", "token"}};
  for (std::size_t i = 0; i < ids.size(); ++i)
    table.push_back({std::to_string(i), std::to_string(ids[i]),
                     std::isnan(losses[i]) ? "-" : FormatFixed(losses[i], 4),
                     EscapeLine(tokenizer.Piece(ids[i], /*special=*/true))});
  Stdout::Write(FormatTable(table, 0) + "\n");
}

Json ToJson(const Session& session, std::size_t tokens, const Total& total) {
  const double mean = total.nll / static_cast<double>(total.predicted);
  Json json;
  json["tokens"] = tokens;
  json["predicted_tokens"] = total.predicted;
  json["mean_nll"] = mean;
  json["perplexity"] = std::exp(mean);
  json["context"] = session.context();
  json["isa"] = IsaName(session.isa());
  json["type_k"] = KvTypeName(session.options().k_type);
  json["type_v"] = KvTypeName(session.options().v_type);
  json["threads"] = session.threads();
  json["interrupted"] = Interrupted().load();
  return json;
}

int Print(const Flags& flags, const Model& model, const Session& session,
          const std::vector<TokenId>& ids, const Total& total) {
  const double mean = total.nll / static_cast<double>(total.predicted);
  if (flags.format == "csv") {
    WriteCsv(TokenRows(model.tokenizer(), ids, total.losses));
  } else if (flags.format == "json") {
    Json json = ToJson(session, ids.size(), total);
    if (flags.per_token) json["per_token"] = TokenRows(model.tokenizer(), ids, total.losses);
    Stdout::WriteJson(json);
  } else {
    if (flags.per_token) PrintTokens(model.tokenizer(), ids, total.losses);
    Stdout::Write("tokens      " + std::to_string(ids.size()) + " (" +
                  std::to_string(total.predicted) + " predicted" +
                  (Interrupted().load() ? ", interrupted)\n" : ")\n"));
    Stdout::Write("mean NLL    " + FormatFixed(mean, 4) + " nats\n");
    Stdout::Write("perplexity  " + FormatFixed(std::exp(mean), 3) + "\n");
  }
  return Stdout::Finish();
}

int Run(const Flags& flags) {
  const Result<Model> model = LoadModel(flags.model, ToModelOptions(flags.session));
  if (!model.ok()) return Fail(model.status());
  const Tokenizer& tokenizer = model->tokenizer();
  const Result<std::vector<TokenId>> ids = ReadIds(flags, tokenizer);
  if (!ids.ok()) return Fail(ids.status());
  if (ids->size() < 2)
    return Fail(Status(StatusCode::kInvalidArgument, "perplexity: the text has " +
                                                         std::to_string(ids->size()) +
                                                         " tokens, at least 2 are needed"));
  Result<Session> session = Session::Create(*model, ToSessionOptions(flags.session));
  if (!session.ok()) return Fail(session.status());
  WarnOfLongContext(model->config(), flags.session.context);
  if (flags.ablation.Given())
    if (Status status = Ablate(flags.ablation, flags.session, *model, *session); !status.ok())
      return Fail(status);
  if (session->context() < 4)
    return Fail(Status(
        StatusCode::kInvalidArgument,
        "perplexity: context = " + std::to_string(session->context()) + ", at least 4 are needed"));
  std::optional<TokenId> bos;
  if (tokenizer.bos() && ids->front() == *tokenizer.bos()) bos = tokenizer.bos();
  CatchInterrupt();
  Total total;
  total.losses.assign(ids->size(), std::numeric_limits<double>::quiet_NaN());
  if (Status status = ScoreAll(*session, *ids, bos, &total); !status.ok()) return Fail(status);
  if (total.predicted == 0)
    return Fail(Status(StatusCode::kIoError, "perplexity: interrupted before the first token"));
  return Print(flags, *model, *session, *ids, total);
}

}  // namespace

Command AddPerplexity(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("perplexity", "Score how well a model predicts a text");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  app.AddOption("--ids-file", &flags->ids_file,
                "Read token ids instead: a JSON list, or numbers separated by spaces or commas")
      .Type("FILE")
      .Excludes("--prompt")
      .Excludes("--file");
  AddThreads(app, &flags->session.threads);
  AddContext(app, &flags->session);
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddAblation(app, &flags->ablation);
  app.AddFlag("--per-token", &flags->per_token, "Also show the loss of every token");
  AddChoice(app, "-o,--output", &flags->format, {"text", "json", "csv"},
            "How to print; csv: the losses of --per-token alone");
  app.OnParsed([flags] {
    if (flags->format == "csv" && !flags->per_token)
      RejectUsage("perplexity", "-o csv needs --per-token");
  });
  app.Footer(
      std::string(kAblationHelp) +
      "mean_nll is the mean of -ln p(token | all before it) over every token but the first, in "
      "nats;\n"
      "perplexity = exp(mean_nll). A text longer than the context is scored in windows that "
      "advance\n"
      "by half a context: each token is predicted once, from at least half a context before it, "
      "and\n"
      "each window begins with the begin token if the text does.\n"
      "Examples:\n"
      "  manyhead perplexity -f book.txt\n"
      "  manyhead perplexity -m gemma3-270m --ids-file ids.json --math exact --kv-type f32 -o "
      "json");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
