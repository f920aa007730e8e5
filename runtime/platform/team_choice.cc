#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "manyhead/threads.h"
#include "runtime/platform/cpu_mask.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"
#include "runtime/platform/team_backend.h"
#include "runtime/platform/team_executor.h"
#include "runtime/platform/team_openmp.h"

/// Selects the team of the process. One atomic word holds the team and the number of regions that
/// use the executor: a region of own threads only reads it, and an executor is replaced only while
/// the number is 0.

namespace manyhead {
namespace {

using internal::ExecutorTeam;
using internal::TeamBackend;

/// An executor is written to the slot that is not in use, so that no region sees it half written.
enum class Slot : std::uint8_t { kEnvironment, kOwn, kOpenMp, kExecutorA, kExecutorB };

constexpr int kSlotShift = 32;
constexpr std::uint64_t Word(Slot slot, std::uint32_t regions) noexcept {
  return (static_cast<std::uint64_t>(slot) << kSlotShift) | regions;
}
constexpr Slot SlotOf(std::uint64_t word) noexcept { return static_cast<Slot>(word >> kSlotShift); }
constexpr std::uint32_t RegionsOf(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word);
}
constexpr bool IsExecutor(Slot slot) noexcept { return slot >= Slot::kExecutorA; }

constinit std::atomic<std::uint64_t> g_word = Word(Slot::kEnvironment, 0);
constinit std::atomic<bool> g_is_setting = false;
/// Number of regions of this thread that the word counts.
thread_local std::uint32_t t_regions = 0;

ExecutorTeam& Executor(Slot slot) noexcept {
  static constinit ExecutorTeam executors[2];
  return executors[slot == Slot::kExecutorB ? 1 : 0];
}

/// The value that MANYHEAD_TEAM had when a team was first needed.
struct Environment {
  std::optional<Team> team = Team::kOwn;  ///< none for an unknown name
  char name[64] = "";                     ///< the first characters of the value
};

const Environment& ReadEnvironment() noexcept {
  static const Environment environment = [] {
    Environment read;
    const char* name = std::getenv("MANYHEAD_TEAM");
    if (name == nullptr || *name == '\0') return read;
    std::snprintf(read.name, sizeof read.name, "%s", name);
    read.team = ParseTeam(name);
    // An executor can only come from a program.
    if (read.team == Team::kExecutor) read.team.reset();
    return read;
  }();
  return environment;
}

/// Returns the team of this thread's next region, where there is one.
std::optional<Team> TeamOf(Slot slot) noexcept {
  if (IsExecutor(slot)) return Team::kExecutor;
  std::optional<Team> team = slot == Slot::kOwn      ? Team::kOwn
                             : slot == Slot::kOpenMp ? Team::kOpenMp
                                                     : ReadEnvironment().team;
  if (team == Team::kOpenMp && internal::OpenMpIsLost()) team = Team::kOwn;
  return team;
}

/// Removes the executor in a child process: the threads of its pool exist only in the parent.
void ForgetExecutor() noexcept {
  const Slot slot = SlotOf(g_word.load());
  g_word.store(Word(IsExecutor(slot) ? Slot::kEnvironment : slot, t_regions));
  g_is_setting.store(false);
}

/// Counts a use of the word's executor while it exists; uses another team where the word has just
/// changed.
class CountedUse {
 public:
  CountedUse() noexcept : slot_(SlotOf(g_word.fetch_add(1))) { ++t_regions; }
  ~CountedUse() {
    --t_regions;
    g_word.fetch_sub(1);
  }
  CountedUse(const CountedUse&) = delete;
  CountedUse& operator=(const CountedUse&) = delete;
  Slot slot() const noexcept { return slot_; }

 private:
  Slot slot_;
};

TeamBackend& BackendOf(Slot slot) noexcept {
  if (IsExecutor(slot)) return Executor(slot);
  return TeamOf(slot) == Team::kOpenMp ? internal::OpenMpTeam() : internal::OwnTeam();
}

Status CheckOptions(const ThreadsOptions& options) {
  constexpr const char* kName = "ThreadsOptions";
  const bool wants_executor = options.team == Team::kExecutor;
  if (options.team.has_value() && *options.team > Team::kExecutor)
    return InvalidArgument(kName, "team = ", static_cast<int>(*options.team),
                           "; expected own, openmp or executor");
  if (wants_executor && options.run == nullptr)
    return InvalidArgument(kName, "team = executor, but run is null");
  if (!wants_executor && options.run != nullptr)
    return InvalidArgument(kName, "run is given, but team = ",
                           options.team ? TeamName(*options.team) : "none", "; expected executor");
  if (options.max_workers < 0 || options.max_workers > kMaxThreads)
    return OutOfRange(kName, "max_workers", options.max_workers, 0, kMaxThreads);
  constexpr std::int64_t kMostTimeout = 60'000'000;
  if (options.join_timeout_us < 0 || options.join_timeout_us > kMostTimeout)
    return OutOfRange(kName, "join_timeout_us", options.join_timeout_us, 0, kMostTimeout);
  return Status();
}

/// Writes `slot` to the word, unless regions use the current executor.
Status Replace(Slot slot) {
  std::uint64_t word = g_word.load();
  do {
    if (const std::uint32_t regions = RegionsOf(word); regions > 0)
      return Unsupported("SetThreads", "the executor is in use by ", regions,
                         regions == 1 ? " region" : " regions", "; expected none");
  } while (!g_word.compare_exchange_weak(word, Word(slot, 0)));
  return Status();
}

}  // namespace

const char* TeamName(Team team) noexcept {
  switch (team) {
    case Team::kOwn:
      return "own";
    case Team::kOpenMp:
      return "openmp";
    case Team::kExecutor:
      return "executor";
  }
  return "?";
}

std::optional<Team> ParseTeam(std::string_view name) noexcept {
  for (const Team team : {Team::kOwn, Team::kOpenMp, Team::kExecutor})
    if (name == TeamName(team)) return team;
  return std::nullopt;
}

Result<Team> SelectTeam() {
  if (const std::optional<Team> team = TeamOf(SlotOf(g_word.load()))) return *team;
  return MakeError(StatusCode::kInvalidArgument,
                   "MANYHEAD_TEAM = ", Printable(ReadEnvironment().name),
                   "; expected own or openmp (an executor is set by SetThreads)");
}

Status SetThreads(const ThreadsOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ForgetExecutor(); });
  if (g_is_setting.exchange(true))
    return Unsupported("SetThreads", "another call is at work; expected one at a time");
  Slot slot = Slot::kEnvironment;
  if (options.team == Team::kOwn) slot = Slot::kOwn;
  if (options.team == Team::kOpenMp) slot = Slot::kOpenMp;
  if (options.team == Team::kExecutor) {
    slot = SlotOf(g_word.load()) == Slot::kExecutorA ? Slot::kExecutorB : Slot::kExecutorA;
    CpuMask allowed;
    Executor(slot).Reset(options, allowed.Read() ? allowed.Count() : 1);
  }
  Status status = Replace(slot);
  g_is_setting.store(false);
  return status;
}

ExecutorUse GetExecutorUse() noexcept {
  const CountedUse use;
  return IsExecutor(use.slot()) ? Executor(use.slot()).use() : ExecutorUse{};
}

namespace internal {

int TeamLimit() noexcept {
  const CountedUse use;
  if (!IsExecutor(use.slot()))
    return TeamOf(use.slot()) == Team::kOpenMp ? OpenMpThreads() : kMaxThreads;
  const int workers = Executor(use.slot()).max_workers();
  return workers > 0 ? workers : kMaxThreads;
}

void RunTeamImpl(int threads, TeamBody body, void* context) noexcept {
  if (threads <= 1) return RunAlone(body, context);
  const Slot slot = SlotOf(g_word.load(std::memory_order_acquire));
  if (!IsExecutor(slot)) return BackendOf(slot).Run(threads, body, context);
  const CountedUse use;
  BackendOf(use.slot()).Run(threads, body, context);
}

}  // namespace internal
}  // namespace manyhead
