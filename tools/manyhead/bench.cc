#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/threads.h"
#include "tools/manyhead/bench_profile.h"
#include "tools/manyhead/bench_run.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  SessionFlags session;
  std::vector<std::int64_t> prompts = {512}, gens = {64}, depths = {0}, threads = {0};
  std::int64_t repetitions = 5;
  bool profile = false, profile_heads = false;
};

/// The settings that the rows of one session share.
struct Setting {
  SessionOptions options;
  int threads = 0;
  Isa isa = Isa::kScalar;
  Team team = Team::kOwn;
  std::int64_t kv_bytes_per_token = 0;
  double bandwidth = 0;  ///< measured value, bytes per second
  bool profiles_heads = false;
};

struct Row {
  Setting setting;
  BenchResult result;
};

/// The results: rows, or with --profile profiles.
struct Outcome {
  std::vector<Row> rows;
  std::vector<Profile> profiles;
};

/// Returns the percentage of the measured bandwidth that decoding used; negative where there is
/// none.
double BandwidthPercent(const Model& model, const Row& row) {
  if (row.result.test.n_gen == 0 || row.setting.bandwidth <= 0) return -1;
  const double bytes =
      static_cast<double>(model.weight_bytes_per_token() + row.result.kv_read_bytes_per_token);
  return 100 * bytes * row.result.ts.mean / row.setting.bandwidth;
}

Json RowJson(const Model& model, const Row& row) {
  const BenchResult& result = row.result;
  const double percent = BandwidthPercent(model, row);
  Json json;
  json["build_version"] = MANYHEAD_VERSION;
  json["cpu_info"] = CpuName();
  json["backends"] = "CPU";
  json["model_filename"] = model.path();
  json["model_type"] = ModelType(model);
  json["model_size"] = model.weight_bytes();
  json["model_n_params"] = model.num_parameters();
  json["n_batch"] = row.setting.options.chunk;
  json["n_threads"] = row.setting.threads;
  json["type_k"] = KvTypeName(row.setting.options.k_type);
  json["type_v"] = KvTypeName(row.setting.options.v_type);
  json["n_prompt"] = result.test.n_prompt;
  json["n_gen"] = result.test.n_gen;
  json["n_depth"] = result.test.n_depth;
  json["test_time"] = result.test_time;
  json["avg_ns"] = result.ns.mean;
  json["stddev_ns"] = result.ns.deviation ? Json(*result.ns.deviation) : Json();
  json["avg_ts"] = result.ts.mean;
  json["stddev_ts"] = result.ts.deviation ? Json(*result.ts.deviation) : Json();
  json["isa"] = IsaName(row.setting.isa);
  json["team"] = TeamName(row.setting.team);
  json["profiles_heads"] = row.setting.profiles_heads;
  json["math"] = row.setting.options.math == MathMode::kExact ? "exact" : "fast";
  json["weight_bytes_per_token"] = model.weight_bytes_per_token();
  json["kv_bytes_per_token"] = row.setting.kv_bytes_per_token;
  json["kv_read_bytes_per_token"] = result.kv_read_bytes_per_token;
  json["bandwidth_bytes_per_second"] = row.setting.bandwidth;
  json["bandwidth_percent"] = percent < 0 ? Json() : Json(percent);
  json["peak_resident_bytes"] = result.peak_resident_bytes;
  json["ids_checksum"] = result.ids_checksum;
  json["samples_ns"] = result.samples_ns;
  json["samples_ts"] = result.samples_ts;
  return json;
}

void PrintTable(const Model& model, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells = {{"model", "size", "isa", "kv", "threads", "test",
                                                  "tokens/s", "+-", "bandwidth", "KV/token",
                                                  "peak memory", "ids"}};
  for (const Row& row : rows) {
    const double percent = BandwidthPercent(model, row);
    cells.push_back({ModelType(model), FormatBytes(static_cast<double>(model.weight_bytes())),
                     IsaName(row.setting.isa),
                     FormatKvTypes({row.setting.options.k_type, row.setting.options.v_type}),
                     std::to_string(row.setting.threads), TestName(row.result.test),
                     FormatFixed(row.result.ts.mean, 2),
                     row.result.ts.deviation ? FormatFixed(*row.result.ts.deviation, 2) : "n/a",
                     percent < 0 ? "" : FormatFixed(percent, 0) + " %",
                     FormatBytes(static_cast<double>(row.setting.kv_bytes_per_token)),
                     FormatBytes(static_cast<double>(row.result.peak_resident_bytes)),
                     row.result.ids_checksum.substr(0, 8)});
  }
  Stdout::Write(FormatTable(cells, 1));
  if (!rows.empty())
    Stdout::Write("decoding reads " +
                  FormatBytes(static_cast<double>(model.weight_bytes_per_token())) +
                  " of weights per token; memory reads at " +
                  FormatFixed(rows.front().setting.bandwidth / 1e9, 1) + " GB/s\n");
}

/// Runs the tests of one thread count.
Status RunSession(const Model& model, const Flags& flags, std::int64_t threads,
                  const std::vector<BenchTest>& tests, Outcome* outcome) {
  Setting setting;
  setting.options = ToSessionOptions(flags.session);
  setting.options.threads = static_cast<int>(threads);
  for (const BenchTest& test : tests)
    setting.options.context =
        std::max(setting.options.context, test.n_depth + test.n_prompt + test.n_gen);
  Result<Session> session = Session::Create(model, setting.options);
  if (!session.ok()) return session.status();
  setting.options = session->options();
  setting.threads = session->threads();
  setting.isa = session->isa();
  if (const Result<Team> team = SelectTeam(); team.ok()) setting.team = *team;
  setting.kv_bytes_per_token = session->cache().bytes_per_token();
  HeadProfile heads;  // only its cost is of interest
  if (flags.profile_heads)
    if (Status status = session->SetHeadProfile(&heads); !status.ok()) return status;
  setting.profiles_heads = flags.profile_heads;
  BenchRunner runner(model, *session, SteadyNanoseconds);
  for (const BenchTest& test : tests) {
    if (flags.profile) {
      Result<std::optional<ProfileResult>> result = runner.Profile(test, flags.repetitions);
      if (!result.ok()) return result.status();
      if (result->has_value())
        outcome->profiles.push_back({{setting.options, {}}, *std::move(*result)});
    } else {
      Result<std::optional<BenchResult>> result = runner.Run(test, flags.repetitions);
      if (!result.ok()) return result.status();
      if (result->has_value()) outcome->rows.push_back({setting, *std::move(*result)});
    }
    if (Interrupted().load()) break;
  }
  return {};
}

/// Measures the bandwidth after every run, since its buffer would count as peak memory of later
/// runs.
void AddBandwidth(Outcome* outcome) {
  std::map<int, Roofline> by_threads;
  const auto roofline_of = [&](Isa isa, int threads) {
    const auto [entry, is_new] = by_threads.try_emplace(threads);
    if (is_new) entry->second = MeasureRoofline(isa, threads);
    return entry->second;
  };
  for (Row& row : outcome->rows)
    row.setting.bandwidth = roofline_of(row.setting.isa, row.setting.threads).bytes_per_second;
  for (Profile& profile : outcome->profiles)
    profile.setting.roofline =
        roofline_of(*profile.setting.options.isa, profile.setting.options.threads);
}

void Print(const Model& model, const Outcome& outcome, const Flags& flags) {
  std::vector<Json> rows;
  for (const Row& row : outcome.rows) rows.push_back(RowJson(model, row));
  if (flags.profile) {
    PrintProfiles(model, outcome.profiles, flags.format);
  } else if (flags.format == "json") {
    Stdout::WriteJson(Json(rows));
  } else if (flags.format == "csv") {
    WriteCsv(rows);
  } else {
    PrintTable(model, outcome.rows);
  }
}

int Run(const Flags& flags) {
  const Result<Model> model = LoadModel(flags.model, ToModelOptions(flags.session));
  if (!model.ok()) return Fail(model.status());
  const std::vector<BenchTest> tests = PlanTests(flags.prompts, flags.gens, flags.depths);
  CatchInterrupt();
  Outcome outcome;
  for (const std::int64_t threads : flags.threads) {
    if (Interrupted().load()) break;
    if (Status status = RunSession(*model, flags, threads, tests, &outcome); !status.ok())
      return Fail(status);
  }
  AddBandwidth(&outcome);
  Print(*model, outcome, flags);
  return Stdout::Finish();
}

}  // namespace

Command AddBench(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("bench", "Measure the speed of a model");
  AddModel(app, &flags->model);
  const Option prompts =
      AddIntList(app, "-p,--n-prompt", &flags->prompts, {0, 1 << 24}, "Prompt lengths; 0 = none");
  AddIntList(app, "-n,--n-gen", &flags->gens, {0, 1 << 24},
             "Numbers of tokens to decode; 0 = none");
  AddIntList(app, "-d,--n-depth", &flags->depths, {0, 1 << 24}, "Tokens in the cache before");
  AddIntList(app, "-t,--threads", &flags->threads, {0, kMaxThreads},
             "Thread counts; 0 = the CPUs this process may use");
  AddInt(app, "-r,--repetitions", &flags->repetitions, {1, 1 << 20}, "Counted runs of each test");
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddChoice(app, "-o,--output", &flags->format, {"table", "json", "csv"}, "How to print");
  app.AddFlag("--profile", &flags->profile,
              "Show the time of each part of a step; no prompt unless -p");
  app.AddFlag("--profile-heads", &flags->profile_heads,
              "Also profile every head, as `heads profile` does, to show what that costs");
  app.RequireSubcommands(0, 1);
  app.Footer(
      "One row per prompt length and per number of decoded tokens, at each depth. A run that is "
      "not\n"
      "counted comes first; a decode row counts neither the prompt nor the depth. bandwidth is\n"
      "(weights + cache read per token) x tokens/s over the memory bandwidth measured after the "
      "runs;\n"
      "peak memory is that of the process so far; ids is a checksum of the greedy tokens.\n"
      "--profile prints, per decoded token or per chunk of a prompt, the time of each phase at "
      "work\n"
      "(mean of the threads), its waiting for slower threads, which makes up the row barriers, "
      "and\n"
      "its bound: bytes over memory bandwidth or flops over the f32 FMA peak, the larger. "
      "Products\n"
      "in int8 and bf16 can exceed that peak.\n"
      "Examples:\n"
      "  manyhead bench\n"
      "  manyhead bench -m gemma3-270m -p 512 -n 64 -d 0,4096 -t 1,2 -r 5 -o json\n"
      "  manyhead bench --profile -d 4096");
  app.OnParsed([flags, prompts] {
    if (flags->profile && !prompts.Given()) flags->prompts = {0};
    if (PlanTests(flags->prompts, flags->gens, flags->depths).empty())
      RejectUsage("bench", "nothing to measure: -p and -n are 0");
  });
  const Command attention = AddBenchAttention(app);
  return {app,
          [flags, attention] { return attention.app.Parsed() ? attention.run() : Run(*flags); }};
}

}  // namespace manyhead::cli
