#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_support.h"
#include "manyhead/manyhead.h"
#include "runtime/platform/team.h"
#include "tools/examples/pool_executor.h"

/// The speed of the three teams, idle and beside processes that compute without end: barriers a
/// second within a region, regions a second, and decoded tokens a second of a small model. A number
/// is the median of rounds in which the teams take turns.

namespace manyhead::bench {
namespace {

constexpr Team kTeams[] = {Team::kOwn, Team::kOpenMp, Team::kExecutor};
constexpr int kMeasures = 3;

struct Flags {
  std::string model;
  int threads = DefaultThreads();
  int busy = 2 * DefaultThreads();  ///< processes
  int rounds = 5;
};

/// Processes that compute without end, for its lifetime.
class BusyLoops {
 public:
  explicit BusyLoops(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(3600);  // they do not outlive a parent that was killed by much
        for (std::atomic<unsigned> x = 0;;) x.fetch_add(1, std::memory_order_relaxed);
      }
      if (child > 0) children_.push_back(child);
    }
  }
  ~BusyLoops() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  std::vector<pid_t> children_;
};

double PerSecond(std::int64_t count, std::int64_t start) {
  return 1e9 * static_cast<double>(count) /
         static_cast<double>(std::max<std::int64_t>(1, Now() - start));
}

/// Counts barriers per second, over a fifth of a second, in regions of 100.
double Barriers(int threads) {
  std::int64_t count = 0;
  const std::int64_t start = Now();
  while (Now() - start < 200'000'000) {
    RunTeam(threads, [](Worker& worker) {
      for (int i = 0; i < 100; ++i) worker.Barrier();
    });
    count += 100;
  }
  return PerSecond(count, start);
}

double Regions(int threads) {
  std::int64_t count = 0;
  const std::int64_t start = Now();
  for (; Now() - start < 200'000'000; ++count) RunTeam(threads, [](Worker&) {});
  return PerSecond(count, start);
}

/// Decoded tokens a second; 0 when the session fails.
double Tokens(Session& session) {
  constexpr int kTokens = 64;
  if (!session.Truncate(1).ok()) return 0;
  const std::int64_t start = Now();
  for (int i = 0; i < kTokens; ++i) {
    const TokenId id[] = {static_cast<TokenId>(70 + i)};
    if (!session.Append(id).ok()) return 0;
  }
  return PerSecond(kTokens, start);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Prints a row of the table for each team.
Status Measure(const Flags& flags, const char* state, examples::PoolExecutor& pool,
               Session& session) {
  std::vector<double> results[std::size(kTeams)][kMeasures];
  for (int round = 0; round < flags.rounds; ++round) {
    for (std::size_t team = 0; team < std::size(kTeams); ++team) {
      ThreadsOptions options;
      options.team = kTeams[team];
      if (kTeams[team] == Team::kExecutor) options = pool.Options();
      if (Status status = SetThreads(options); !status.ok()) return status;
      results[team][0].push_back(Barriers(flags.threads));
      results[team][1].push_back(Regions(flags.threads));
      results[team][2].push_back(Tokens(session));
    }
  }
  for (std::size_t team = 0; team < std::size(kTeams); ++team)
    std::printf("| %s | %s | %.0f | %.0f | %.1f |\n", TeamName(kTeams[team]), state,
                Median(results[team][0]), Median(results[team][1]), Median(results[team][2]));
  std::fflush(stdout);
  return SetThreads({});
}

Status Run(const Flags& flags) {
  examples::PoolExecutor pool(flags.threads - 1);
  const auto model = Model::Load(flags.model);
  if (!model.ok()) return model.status();
  auto session = Session::Create(*model, {.context = 256, .threads = flags.threads});
  if (!session.ok()) return session.status();
  const TokenId first[] = {1};
  if (const auto row = session->Append(first); !row.ok()) return row.status();
  std::printf("%s, %d threads, medians of %d rounds\n\n", flags.model.c_str(), flags.threads,
              flags.rounds);
  std::printf(
      "| team | machine | barriers/s | regions/s | decode tokens/s |\n|---|---|---|---|---|\n");
  if (Status status = Measure(flags, "idle", pool, *session); !status.ok()) return status;
  const BusyLoops busy(flags.busy);
  const std::string state = "beside " + std::to_string(flags.busy) + " busy loops";
  return Measure(flags, state.c_str(), pool, *session);
}

bool ParseCount(std::string_view text, int low, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= low && value <= 1024;
}

bool Parse(int argc, char** argv, Flags& flags) {
  if (argc < 2 || argc % 2 != 0) return false;
  flags.model = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const bool known = (name == "--threads" && ParseCount(argv[i + 1], 2, flags.threads)) ||
                       (name == "--busy" && ParseCount(argv[i + 1], 0, flags.busy)) ||
                       (name == "--rounds" && ParseCount(argv[i + 1], 1, flags.rounds));
    if (!known) return false;
  }
  return flags.threads >= 2;
}

}  // namespace
}  // namespace manyhead::bench

int main(int argc, char** argv) {
  manyhead::bench::Flags flags;
  if (!manyhead::bench::Parse(argc, argv, flags)) {
    std::fprintf(
        stderr,
        "usage: team_bench MODEL.gguf [--threads 2..1024] [--busy PROCESSES] [--rounds N]\n");
    return 2;
  }
  const manyhead::Status status = manyhead::bench::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "team_bench: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
