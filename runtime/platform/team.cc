#include "runtime/platform/team.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>

#include "runtime/platform/clock.h"
#include "runtime/platform/team_backend.h"

namespace manyhead {
namespace {

/// Number of barriers at which this thread still sleeps without spinning, after a spin that failed.
thread_local int t_naps = 0;

}  // namespace

void Worker::TeamBarrier() noexcept {
  if (waited_ == nullptr) return WaitForTeam();
  const std::int64_t start = SteadyNanoseconds();
  WaitForTeam();
  *waited_ += SteadyNanoseconds() - start;
}

/// Spins first, unless spinning failed lately: where other processes or a CPU quota keep a thread
/// of the team from running, spinning only takes its CPU away. A team larger than the machine never
/// spins.
void Worker::WaitForTeam() noexcept {
  constexpr int kNaps = 64;
  const std::uint32_t round = state_->round.load(std::memory_order_relaxed);
  if (state_->waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    state_->waiting.store(0, std::memory_order_relaxed);
    state_->round.store(round + 1, std::memory_order_release);
    state_->round.notify_all();
    return;
  }
  if (state_->may_spin && t_naps == 0) {
    if (internal::SpinWhile(state_->round, round)) return;
    t_naps = kNaps;
  } else if (t_naps > 0) {
    --t_naps;
  }
  const std::int64_t start = SteadyNanoseconds();
  // wait() may return early only when the value has changed.
  state_->round.wait(round, std::memory_order_acquire);
  state_->slept_ns.fetch_add(SteadyNanoseconds() - start, std::memory_order_relaxed);
}

namespace internal {

void RunAlone(TeamBody body, void* context) noexcept {
  TeamState state;
  RunWorker(state, 0, 1, body, context);
}

bool SpinWhile(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept {
  constexpr int kPauses = 64;  // pauses between two calls of sched_yield
  const std::int64_t end = SteadyNanoseconds() + kSpinNanoseconds;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (word.load(std::memory_order_acquire) != old) return true;
      _mm_pause();
    }
    sched_yield();
  } while (SteadyNanoseconds() < end);
  return false;
}

void TeamBackoff::Note(const TeamState& state, std::int64_t start, int count) noexcept {
  constexpr int kBadTeams = 3;
  constexpr std::int64_t kRest = 10, kMostNanoseconds = 1'000'000'000;
  // A team that sleeps at every barrier says nothing about the machine.
  if (!state.may_spin) return;
  const std::int64_t now = SteadyNanoseconds();
  const std::int64_t slept = state.slept_ns.load(std::memory_order_relaxed);
  if (slept * 4 < (now - start) * count) {
    bad_teams_ = 0;
    return;
  }
  if (++bad_teams_ < kBadTeams) return;
  alone_until_ = now + std::min(slept * kRest, kMostNanoseconds);
}

}  // namespace internal
}  // namespace manyhead
