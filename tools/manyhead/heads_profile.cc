#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
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
  std::int64_t every = HeadProfileOptions{}.every;
  std::int64_t sink_tokens = HeadProfileOptions{}.sink_tokens;
  std::int64_t recent = HeadProfileOptions{}.recent;
  std::int64_t gen = 0;
};

/// Tokens between two checks of the clock and of Ctrl-C.
constexpr std::int64_t kStep = 512;

Status NotEnough(const char* what, std::int64_t count, const char* limit, std::int64_t least) {
  return Status(StatusCode::kInvalidArgument,
                std::string("heads profile: ") + what + " has " + std::to_string(count) +
                    " tokens; expected at least " + limit + std::to_string(least));
}

Status AppendText(Session& session, std::span<const TokenId> ids, std::int64_t total,
                  Progress& progress) {
  while (!ids.empty() && !Interrupted().load()) {
    const auto step = ids.first(std::min(ids.size(), static_cast<std::size_t>(kStep)));
    if (const auto logits = session.Append(step, RowRole::kPrefill); !logits.ok())
      return logits.status();
    ids = ids.subspan(step.size());
    progress.Update(session.length(), total);
  }
  return {};
}

/// Evaluates the text, or with --n-gen the tokens that follow it.
Status Collect(Session& session, std::span<const TokenId> ids, const Flags& flags,
               HeadProfile* profile) {
  Progress progress("profiling", "tokens");
  const HeadProfileOptions options{flags.every, flags.sink_tokens, flags.recent};
  const std::int64_t total = std::ssize(ids) + flags.gen;
  if (flags.gen == 0) {
    if (Status status = session.SetHeadProfile(profile, options); !status.ok()) return status;
    return AppendText(session, ids, total, progress);
  }
  if (Status status = AppendText(session, ids, total, progress); !status.ok()) return status;
  if (Status status = session.SetHeadProfile(profile, options); !status.ok()) return status;
  const auto best = [](std::span<const float> logits) {
    return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
  };
  for (std::int64_t i = 0; i < flags.gen && !Interrupted().load(); ++i) {
    const TokenId next = best(session.logits());
    if (const auto logits = session.Append({&next, 1}); !logits.ok()) return logits.status();
    progress.Update(session.length(), total);
  }
  return {};
}

Json HeadJson(const HeadStats& head, std::int64_t layer, std::int64_t index, std::int64_t kv_head) {
  Json json;
  json["layer"] = layer;
  json["head"] = index;
  json["kv_head"] = kv_head;
  json["seconds"] = head.seconds;
  json["kv_bytes"] = head.kv_bytes;
  json["rows"] = head.rows;
  json["entropy"] = head.entropy;
  json["effective_tokens"] = head.effective_tokens();
  json["sink_mass"] = head.sink_mass;
  json["recent_mass"] = head.recent_mass;
  json["mean_distance"] = head.mean_distance;
  json["median_distance"] = head.median_distance;
  json["max_weight"] = head.max_weight;
  json["output_norm"] = head.output_norm;
  return json;
}

std::vector<Json> HeadRows(const Model& model, const HeadProfile& profile) {
  std::vector<Json> rows;
  for (std::size_t l = 0; l < profile.heads.size(); ++l) {
    const LayerConfig& layer = model.config().layers[l];
    const std::int64_t group = layer.num_heads / layer.num_kv_heads;
    for (std::int64_t h = 0; h < layer.num_heads; ++h)
      rows.push_back(HeadJson(profile.heads[l][static_cast<std::size_t>(h)],
                              static_cast<std::int64_t>(l), h, h / group));
  }
  return rows;
}

void PrintTable(const Model& model, const Session& session, const HeadProfile& profile) {
  std::vector<std::vector<std::string>> table = {{"layer", "head", "KV head", "us/token",
                                                  "KV/token", "entropy", "tokens", "sink", "recent",
                                                  "mean dist", "median", "largest", "output"}};
  const auto tokens = static_cast<double>(std::max<std::int64_t>(1, profile.tokens));
  for (const Json& row : HeadRows(model, profile)) {
    const auto number = [&](const char* key, int digits) {
      return FormatFixed(row[key].get<double>(), digits);
    };
    table.push_back({std::to_string(row["layer"].get<std::int64_t>()),
                     std::to_string(row["head"].get<std::int64_t>()),
                     std::to_string(row["kv_head"].get<std::int64_t>()),
                     FormatFixed(row["seconds"].get<double>() * 1e6 / tokens, 2),
                     FormatBytes(row["kv_bytes"].get<double>() / tokens), number("entropy", 2),
                     number("effective_tokens", 1), number("sink_mass", 3),
                     number("recent_mass", 3), number("mean_distance", 1),
                     number("median_distance", 1), number("max_weight", 3),
                     number("output_norm", 3)});
  }
  Stdout::Write(FormatTable(table, 0));
  Stdout::Write("\n" + ModelType(model) + ", " + IsaName(session.isa()) + ", " +
                std::to_string(session.threads()) + " threads: " + std::to_string(profile.tokens) +
                " tokens in " + std::to_string(profile.steps) + " steps; weights of every " +
                std::to_string(profile.options.every) + "th\nsink: on the first " +
                std::to_string(profile.options.sink_tokens) + " tokens; recent: on the last " +
                std::to_string(profile.options.recent) + "\n");
}

void Print(const Model& model, const Session& session, const HeadProfile& profile,
           const std::string& format) {
  if (format == "table") return PrintTable(model, session, profile);
  const std::vector<Json> rows = HeadRows(model, profile);
  if (format == "csv") return WriteCsv(rows);
  Json json;
  json["model"] = ModelType(model);
  json["isa"] = IsaName(session.isa());
  json["threads"] = session.threads();
  json["type_k"] = KvTypeName(session.options().k_type);
  json["type_v"] = KvTypeName(session.options().v_type);
  json["steps"] = profile.steps;
  json["tokens"] = profile.tokens;
  json["every"] = profile.options.every;
  json["sink_tokens"] = profile.options.sink_tokens;
  json["recent"] = profile.options.recent;
  json["interrupted"] = Interrupted().load();
  json["heads"] = rows;
  Stdout::WriteJson(json);
}

int Run(const Flags& flags) {
  Result<ModelText> input = ReadModelText(flags.model, flags.session, flags.text);
  if (!input.ok()) return Fail(input.status());
  auto& [model, ids] = *input;
  Result<Session> session = Session::Create(model, ToSessionOptions(flags.session));
  if (!session.ok()) return Fail(session.status());
  const std::int64_t room = session->context() - flags.gen;
  if (room < 1)
    return Fail(NotEnough("the context", session->context(), "1 + -n = ", 1 + flags.gen));
  if (std::ssize(ids) > room) ids.resize(static_cast<std::size_t>(room));
  const std::int64_t least = flags.gen == 0 ? flags.every : 1;
  if (std::ssize(ids) < least)
    return Fail(NotEnough("the text", std::ssize(ids), flags.gen == 0 ? "--every = " : "", least));
  CatchInterrupt();
  HeadProfile profile;
  if (Status status = Collect(*session, ids, flags, &profile); !status.ok()) return Fail(status);
  Print(model, *session, profile, flags.format);
  return Stdout::Finish();
}

}  // namespace

Command AddHeadsProfile(App heads) {
  const auto flags = std::make_shared<Flags>();
  const App app = heads.AddSubcommand("profile", "What each head costs and where it looks");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  AddInt(app, "--every", &flags->every, {1}, "Measure the weights of every n-th token");
  AddInt(app, "--sink-tokens", &flags->sink_tokens, {0}, "First tokens that count as sink");
  AddInt(app, "--recent", &flags->recent, {1}, "Last tokens that count as recent");
  AddInt(app, "-n,--n-gen", &flags->gen, {0, 1 << 24},
         "Profile this many tokens, decoded after the text; 0 = the text itself");
  AddThreads(app, &flags->session.threads);
  AddContext(app, &flags->session);
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddChoice(app, "-o,--output", &flags->format, {"table", "json", "csv"}, "How to print");
  app.Footer(
      "A text longer than the context is cut there. Time is attention's, summed over threads; "
      "heads "
      "that\n"
      "share a KV head are computed together and get even parts of its time and bytes. The rest "
      "are means\n"
      "over the tokens looked at: entropy in nats and e^entropy, weight of the first and the last "
      "tokens,\n"
      "mean and median distance of what is attended to, the largest weight, and the norm of what "
      "the head\n"
      "writes into the residual stream.\n"
      "Examples:\n"
      "  manyhead heads profile -f book.txt\n"
      "  manyhead heads profile -m gemma3-270m -f book.txt -c 4096 -n 64 --every 1 -o csv");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
