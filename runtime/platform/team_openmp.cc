#include "runtime/platform/team_openmp.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "runtime/platform/clock.h"
#include "runtime/platform/team_backend.h"

namespace manyhead::internal {
namespace {

/// The state that one calling thread keeps about its OpenMP threads.
struct Caller {
  pid_t process = 0;               ///< process that has the threads; 0 = there are none yet
  int given = 1;                   ///< threads that its last region asked for and got
  std::int64_t refused_until = 0;  ///< time until which no more threads are asked for
  TeamBackoff backoff;
};

thread_local Caller t_caller;

/// Returns how many of `wanted` threads, the calling one included, the system would give now.
int ProbeThreads(int wanted) noexcept {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(wanted));
    while (static_cast<int>(threads.size()) < wanted - 1)
      threads.emplace_back([&done] { done.wait(false); });
  } catch (const std::exception&) {
  }
  done = true;
  done.notify_all();
  for (std::thread& thread : threads) thread.join();
  return 1 + static_cast<int>(threads.size());
}

/// Returns the size of a region of at most `threads`. GNU's OpenMP ends the process where the
/// system gives it no thread, so a region that may need new threads is first tried with other
/// threads.
int RegionSize(int threads, std::int64_t now) noexcept {
  const int wanted = std::min({threads, OpenMpThreads(), omp_get_thread_limit()});
  if (wanted <= 1 || omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  if (wanted <= t_caller.given || now < t_caller.refused_until)
    return std::min(wanted, t_caller.given);
  constexpr std::int64_t kPatience = 1'000'000'000;
  const int available = ProbeThreads(wanted);
  if (available < wanted) {
    t_caller.given = available;
    t_caller.refused_until = now + kPatience;
  }
  return available;
}

class OpenMp final : public TeamBackend {
 public:
  void Run(int threads, TeamBody body, void* context) noexcept override {
    if (OpenMpIsLost()) return OwnTeam().Run(threads, body, context);
    const std::int64_t start = SteadyNanoseconds();
    if (t_caller.backoff.WorksAlone(start)) return RunAlone(body, context);
    const int size = RegionSize(threads, start);
    if (size <= 1) return RunAlone(body, context);
    TeamState state;
    state.may_spin = size <= omp_get_num_procs();
    int count = 1;
#pragma omp parallel num_threads(size) default(none) shared(state, count, body, context)
    {
      // All threads of a region run at the same time, so that they may wait for each other.
      if (omp_get_thread_num() == 0) count = omp_get_num_threads();
      RunWorker(state, omp_get_thread_num(), omp_get_num_threads(), body, context);
    }
    t_caller.given = size;
    if (count > 1) t_caller.process = getpid();
    t_caller.backoff.Note(state, start, count);
  }
};

}  // namespace

int OpenMpThreads() noexcept { return std::max(1, omp_get_max_threads()); }

std::vector<int> OpenMpCpus() {
  std::vector<int> cpus;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, ids.data());
    cpus.insert(cpus.end(), ids.begin(), ids.end());
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

bool OpenMpIsLost() noexcept { return t_caller.process != 0 && t_caller.process != getpid(); }

TeamBackend& OpenMpTeam() noexcept {
  static constinit OpenMp open_mp;
  return open_mp;
}

}  // namespace manyhead::internal
