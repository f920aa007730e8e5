#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/memory.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/threads.h"
#include "tools/manyhead/bench_compare.h"
#include "tools/manyhead/bench_profile.h"
#include "tools/manyhead/bench_report.h"
#include "tools/manyhead/bench_run.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/environment.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/memory_measure.h"
#include "tools/manyhead/model_path.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;
/// A test without a number of repetitions runs in so many rounds, each after a pause, so that what
/// disturbs one of them does not decide. A difference from an earlier run is measured again in more
/// rounds.
constexpr int kRounds = 4;
constexpr int kRecheck = 3;
constexpr double kPauseSeconds = 0.25;

struct Flags {
  std::vector<std::string> models, pairs;  ///< as they are given, then the models one by one
  std::string format, compare;
  SessionFlags session;
  std::vector<KvTypes> kv_types = {KvTypes{}};
  std::vector<std::int64_t> prompts = {512}, gens = {64}, depths = {0}, threads = {0};
  std::vector<PromptAndGen> both;
  std::vector<int> cpus;
  BenchRuns runs = {.repetitions = 5, .most_repetitions = 0, .least_ns = 0};
  int rounds = 1;
  float delay = 0;
  bool profile = false, profile_heads = false;
};

void Pause(double seconds) {
  constexpr double kLook = 0.1;  // seconds between two looks at Ctrl-C
  for (; seconds > 0 && !Interrupted().load(); seconds -= kLook)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(seconds, kLook)));
}

/// Runs all that the flags ask for, and prints it.
class Bench {
 public:
  Bench(const Flags& flags, const EarlierRows* earlier)
      : flags_(flags),
        earlier_(earlier),
        tests_(PlanTests(flags.prompts, flags.gens, flags.depths, flags.both)),
        report_(flags.format, tests_, earlier, flags.compare) {}

  Status Run();
  /// Ends what is printed.
  void Finish();
  bool has_rows() const { return !report_.empty() || !profiles_.empty(); }

 private:
  Status RunModel(const std::string& name);
  Status RunSession(const Model& model, KvTypes types, std::int64_t threads);
  Status RunTest(const Model& model, const BenchSetting& setting, const BenchTest& test,
                 BenchRunner& runner);
  Status ProfileTest(const Model& model, const BenchSetting& setting, const BenchTest& test,
                     BenchRunner& runner);
  std::optional<BenchComparison> Compare(const Model& model, const BenchSetting& setting,
                                         const BenchRow& row) const;

  const Flags& flags_;
  const EarlierRows* earlier_;
  std::vector<BenchTest> tests_;
  BenchReport report_;
  std::vector<Profile> profiles_;
  Roofline roofline_;  ///< the machine's, for the whole run
  int roofline_threads_ = 0;
  bool first_ = true;  ///< no test has run
};

Status Bench::Run() {
  const Result<Isa> isa = SelectIsa();
  if (!isa.ok()) return isa.status();
  for (const std::int64_t threads : flags_.threads) {
    const auto count = static_cast<int>(threads == 0 ? AllowedCpus() : threads);
    roofline_threads_ = std::max(roofline_threads_, count);
  }
  WarnOfThreads(roofline_threads_);
  for (const std::string& name : flags_.models) {
    const Result<std::string> path = FindModel(name);
    if (!path.ok()) return path.status();
    // A model that cannot be loaded is found before another is measured.
    if (flags_.models.size() == 1) break;
    if (const auto shape = ReadModelShape(*path); !shape.ok()) return shape.status();
  }
  SessionOptions limits;
  limits.isa = *isa;
  limits.threads = roofline_threads_;
  roofline_ = MeasureRooflineInChildProcess(limits);
  for (const std::string& name : flags_.models) {
    if (Interrupted().load()) break;
    if (Status status = RunModel(name); !status.ok()) return status;
  }
  return {};
}

void Bench::Finish() {
  if (flags_.profile) return PrintProfiles(profiles_, flags_.format);
  report_.Finish(roofline_.bytes_per_second);
}

Status Bench::RunModel(const std::string& name) {
  const Result<Model> model = LoadModel(name, ToModelOptions(flags_.session));
  if (!model.ok()) return model.status();
  for (const KvTypes types : flags_.kv_types)
    for (const std::int64_t threads : flags_.threads) {
      if (Interrupted().load()) return {};
      if (Status status = RunSession(*model, types, threads); !status.ok()) return status;
    }
  return {};
}

/// The rows of one type of the cache and one thread count.
Status Bench::RunSession(const Model& model, KvTypes types, std::int64_t threads) {
  BenchSetting setting;
  setting.options = ToSessionOptions(flags_.session);
  setting.options.k_type = types.k;
  setting.options.v_type = types.v;
  setting.options.threads = static_cast<int>(threads);
  for (const BenchTest& test : tests_)
    setting.options.context =
        std::max(setting.options.context, test.n_depth + test.n_prompt + test.n_gen);
  Result<Session> session = Session::Create(model, setting.options);
  if (!session.ok()) return session.status();
  setting.options = session->options();
  setting.threads = session->threads();
  setting.isa = session->isa();
  if (const Result<Team> team = SelectTeam(); team.ok()) setting.team = *team;
  setting.weights = flags_.session.weights;
  setting.kv_bytes_per_token = session->cache().bytes_per_token();
  setting.bandwidth = roofline_.bytes_per_second;
  setting.bandwidth_threads = roofline_threads_;
  HeadProfile heads;  // taken for what that costs
  if (flags_.profile_heads)
    if (Status status = session->SetHeadProfile(&heads); !status.ok()) return status;
  setting.profiles_heads = flags_.profile_heads;
  BenchRunner runner(model, *session, SteadyNanoseconds);
  for (const BenchTest& test : tests_) {
    if (!std::exchange(first_, false)) Pause(flags_.delay);
    if (Interrupted().load()) break;
    Status status = flags_.profile ? ProfileTest(model, setting, test, runner)
                                   : RunTest(model, setting, test, runner);
    if (!status.ok()) return status;
    if (!Stdout::ok()) break;
  }
  return {};
}

Status Bench::ProfileTest(const Model& model, const BenchSetting& setting, const BenchTest& test,
                          BenchRunner& runner) {
  Result<std::optional<ProfileResult>> result = runner.Profile(test, flags_.runs);
  if (!result.ok()) return result.status();
  if (result->has_value())
    profiles_.push_back(
        {{model.path(), ModelType(model), setting.options, roofline_}, *std::move(*result)});
  return {};
}

std::optional<BenchComparison> Bench::Compare(const Model& model, const BenchSetting& setting,
                                              const BenchRow& row) const {
  if (earlier_ == nullptr) return std::nullopt;
  const std::optional<TimedTest> before = earlier_->Find(BenchReport::Fields(model, setting, row));
  if (!before) return std::nullopt;
  TimedTest after;
  for (const std::int64_t ns : row.result.samples_ns)
    after.samples_ns.push_back(static_cast<double>(ns));
  after.probe_flops_per_second = row.probe_flops_per_second;
  return CompareTests(*before, after);
}

Status Bench::RunTest(const Model& model, const BenchSetting& setting, const BenchTest& test,
                      BenchRunner& runner) {
  BenchRow row;
  row.before = ReadCpuState();
  std::optional<BenchComparison> comparison;
  for (int round = 0; round < flags_.rounds + kRecheck; ++round) {
    if (round > 0) Pause(kPauseSeconds);
    // The same work on both sides of the test shows how fast the machine was meanwhile.
    const double before = MeasureFlops(setting.isa, setting.threads);
    Result<std::optional<BenchResult>> result = runner.Run(test, flags_.runs);
    if (!result.ok()) return result.status();
    if (!result->has_value()) break;
    row.probe_flops_per_second =
        std::max({row.probe_flops_per_second, before, MeasureFlops(setting.isa, setting.threads)});
    if (round == 0) {
      row.result = *std::move(*result);
    } else {
      AppendSamples(**result, &row.result);
    }
    if (Interrupted().load()) break;
    if (round + 1 < flags_.rounds) continue;
    comparison = Compare(model, setting, row);
    if (!comparison || comparison->verdict == BenchVerdict::kNoDifference) break;
  }
  row.after = ReadCpuState();
  if (!row.result.samples_ns.empty()) report_.Add(model, setting, row, comparison);
  return {};
}

int Run(const Flags& flags) {
  if (!flags.cpus.empty())
    if (Status status = UseCpus(flags.cpus); !status.ok()) return Fail(status);
  std::optional<EarlierRows> earlier;
  if (!flags.compare.empty()) {
    Result<EarlierRows> read = EarlierRows::Read(flags.compare);
    if (!read.ok()) return Fail(read.status());
    earlier = *std::move(read);
  }
  CatchInterrupt();
  Bench bench(flags, earlier ? &*earlier : nullptr);
  const Status status = bench.Run();
  // Rows that are done stand, and their list is ended.
  if (status.ok() || bench.has_rows()) bench.Finish();
  if (!status.ok()) return Fail(status);
  return Stdout::Finish();
}

/// Splits names at commas, but for one that is a file as it is.
void SplitModels(std::vector<std::string>* models) {
  std::vector<std::string> split;
  for (const std::string& text : *models) {
    std::error_code ignored;  // set for a text that is too long for a name
    if (std::filesystem::exists(text, ignored)) {
      split.push_back(text);
    } else {
      for (const std::string& name : SplitAtCommas(text)) split.push_back(name);
    }
  }
  if (split.empty()) split.emplace_back();  // the bundled model
  *models = std::move(split);
}

PromptAndGen ParsePair(const std::string& text) {
  const std::vector<std::string> parts = SplitAtCommas(text);
  std::vector<std::int64_t> sizes;
  for (const std::string& part : parts)
    if (const auto size = ParseSize(part); size && *size >= 1 && *size <= kMaxTokens)
      sizes.push_back(*size);
  if (parts.size() != 2 || sizes.size() != 2)
    RejectUsage("-pg", "'" + EscapeLine(text) +
                           "' is not P,G: a prompt's length and a number of "
                           "tokens to decode after it, from 1 to " +
                           std::to_string(kMaxTokens));
  return {sizes[0], sizes[1]};
}

void CheckFlags(App app, Flags& flags) {
  if (flags.profile && !app.Given("--n-prompt")) flags.prompts = {0};
  for (const std::string& text : flags.pairs) flags.both.push_back(ParsePair(text));
  // A command line with -pg alone asks for nothing else.
  const bool given = app.Given("--n-prompt") || app.Given("--n-gen");
  if (!flags.both.empty() && !given) flags.prompts = flags.gens = {0};
  if (flags.profile && !flags.both.empty()) RejectBoth("-pg", "--profile");
  if (flags.profile && !flags.compare.empty()) RejectBoth("--compare", "--profile");
  if (PlanTests(flags.prompts, flags.gens, flags.depths, flags.both).empty())
    RejectUsage("bench", "nothing to measure: -p and -n are 0");
  // So many and no more where the number is given.
  if (!app.Given("--repetitions") && !flags.profile) {
    constexpr std::int64_t kRoundNanoseconds = 250'000'000, kMostOfRound = 250;
    flags.rounds = kRounds;
    flags.runs.repetitions = 2;
    flags.runs.most_repetitions = kMostOfRound;
    flags.runs.least_ns = kRoundNanoseconds;
  }
  SplitModels(&flags.models);
}

void AddTests(App app, Flags& flags) {
  app.AddOption("-m,--model", &flags.models,
                "GGUF files, or names of models that tools/fetch_model.py has fetched, separated "
                "by commas or each with -m; default: the bundled model")
      .Type("FILE|NAME,...")
      .OneValueEach();
  AddIntList(app, "-p,--n-prompt", &flags.prompts, {0, kMaxTokens}, "Prompt lengths; 0 = none");
  AddIntList(app, "-n,--n-gen", &flags.gens, {0, kMaxTokens},
             "Numbers of tokens to decode; 0 = none");
  app.AddOption("--pg", &flags.pairs,
                "Also -pg: a prompt of P tokens and G decoded ones as one test; may be repeated")
      .Type("P,G")
      .OneValueEach();
  AddIntList(app, "-d,--n-depth", &flags.depths, {0, kMaxTokens}, "Tokens in the cache before");
  AddIntList(app, "-t,--threads", &flags.threads, {0, kMaxThreads},
             "Thread counts; 0 = the CPUs this process may use");
  AddKvTypes(app, &flags.kv_types);
}

void AddRuns(App app, Flags& flags) {
  AddInt(app, "-r,--repetitions", &flags.runs.repetitions, {1, 1 << 20},
         "Counted runs of each test; unless it is given, 8 or more, for a second or more")
      .Default("");
  AddInt(app, "--warmup", &flags.runs.warmups, {0, 1 << 20}, "Runs before that are not counted");
  AddReal(app, "--delay", &flags.delay, {0, 86400}, "Seconds to wait between two tests");
  app.AddParsed(
         "--cpu-mask",
         [&flags](const std::string& text) {
           Result<std::vector<int>> cpus = ParseCpuMask(text);
           if (!cpus.ok()) RejectUsage("--cpu-mask", cpus.status().message());
           flags.cpus = *std::move(cpus);
         },
         "Run on these CPUs only: a bit for each, in hexadecimal, as long as it has to be")
      .Type("HEX");
  app.AddOption("--compare", &flags.compare,
                "Say of each test whether it is slower or faster than in FILE, which an earlier "
                "run wrote with -o json or -o jsonl")
      .Type("FILE");
  app.AddFlag("--profile", &flags.profile,
              "Show the time of each part of a step; no prompt unless -p");
  app.AddFlag("--profile-heads", &flags.profile_heads,
              "Also profile every head, as `heads profile` does, to show what that costs");
}

constexpr const char* kFooter =
    "One row for each model, type of the cache, thread count and test, printed when it is done.\n"
    "Runs that are not counted come first; a decode row counts neither the prompt nor the depth.\n"
    "tokens/s is the median; interval holds the true median with a probability of 95 %, or, of\n"
    "fewer than 6 runs, is their range (-o json has the probability). bandwidth is (weights + "
    "cache\n"
    "read per token) x tokens/s over the memory bandwidth, which is measured once, before, with "
    "the\n"
    "largest thread count; peak memory is that of the process so far; ids is a checksum of the\n"
    "greedy tokens.\n"
    "--compare takes the time below which a tenth of the runs lie, because others only ever add "
    "to\n"
    "it, and calls a difference one if it is above 5 %, above the noise of resampled blocks, and "
    "not\n"
    "due to a machine that ran faster or slower; what differs is measured again up to three "
    "times.\n"
    "--profile prints, per decoded token or per chunk of a prompt, the time of each phase at work\n"
    "(mean of the threads), its waiting for slower threads, which makes up the row barriers, and\n"
    "its bound: bytes over memory bandwidth or flops over the f32 FMA peak, the larger. Products\n"
    "in int8 and bf16 can exceed that peak.\n"
    "Examples:\n"
    "  manyhead bench\n"
    "  manyhead bench -m gemma3-270m -p 512 -n 64 -d 0,4k -t 1,2 -r 5 -o json\n"
    "  manyhead bench -m gemma3-270m,qwen2.5-coder-0.5b --kv-type f16,int8 -pg 512,128 -o md\n"
    "  manyhead bench -o json > before.json; ...; manyhead bench --compare before.json\n"
    "  manyhead bench --profile -d 4096";

}  // namespace

Command AddBench(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("bench", "Measure the speed of a model");
  AddTests(app, *flags);
  AddMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddRuns(app, *flags);
  AddChoice(app, "-o,--output", &flags->format, RowFormats(), "How to print");
  app.RequireSubcommands(0, 1);
  app.Footer(kFooter);
  app.OnParsed([flags, app] { CheckFlags(app, *flags); });
  const Command attention = AddBenchAttention(app);
  return {app,
          [flags, attention] { return attention.app.Parsed() ? attention.run() : Run(*flags); }};
}

}  // namespace manyhead::cli
