#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace manyhead {

/// What the threads of one parallel region share.
struct TeamState {
  static constexpr int kMaxRanges = 16;
  struct alignas(64) Counter {
    std::atomic<std::int64_t> next = 0;
  };

  Counter ranges[2][kMaxRanges];                      ///< items handed out of each; used in turn
  bool may_spin = false;                              ///< at barriers
  std::atomic<std::int64_t> slept_ns = 0;             ///< at barriers, after a spin in vain
  alignas(64) std::atomic<std::int32_t> waiting = 0;  ///< threads at the present barrier
  alignas(64) std::atomic<std::uint32_t> round = 0;   ///< barriers passed
};

/// One thread's place in a parallel region. Code that runs on a team is called by every thread,
/// each with its own Worker (SPMD), so a whole token needs one region: phases are separated by
/// barriers.
class Worker {
 public:
  Worker(TeamState& state, int index, int count) noexcept
      : state_(&state), index_(index), count_(count) {}

  int index() const noexcept { return index_; }
  int count() const noexcept { return count_; }

  /// Adds the nanoseconds this thread spends at barriers to `*waited` from now on; null = off.
  void CountWaits(std::int64_t* waited) noexcept { waited_ = waited; }

  /// Returns once every thread of the team has called it.
  void Barrier() noexcept {
    if (count_ > 1) TeamBarrier();
  }

  /// Runs fn(i) for each i in [0, items) and ends with a barrier. All threads must call it with the
  /// same `items`. A thread first takes the items of its own contiguous range, the same from call
  /// to call, so that what they read may still lie in its caches; then those that are left of
  /// others. Which thread runs an item may differ from run to run, so an item's result must not
  /// depend on it: bits are equal for every number of threads.
  template <class Fn>
  void ForEach(std::int64_t items, Fn&& fn) noexcept {
    if (count_ == 1) {
      for (std::int64_t i = 0; i < items; ++i) fn(i);
      return;
    }
    const int ranges = count_ < TeamState::kMaxRanges ? count_ : TeamState::kMaxRanges;
    // The other counters were last read before the barrier that ended the phase before this one,
    // and are next read after the barrier that ends this one.
    if (index_ == 0) {
      for (int r = 0; r < ranges; ++r)
        state_->ranges[phase_ ^ 1][r].next.store(0, std::memory_order_relaxed);
    }
    auto& counters = state_->ranges[phase_];
    phase_ ^= 1;
    for (int tried = 0, r = index_ % ranges; tried < ranges; ++tried, r = (r + 1) % ranges) {
      const std::int64_t begin = items * r / ranges, count = items * (r + 1) / ranges - begin;
      std::atomic<std::int64_t>& next = counters[r].next;
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        fn(begin + i);
      }
    }
    TeamBarrier();
  }

 private:
  void TeamBarrier() noexcept;
  void WaitForTeam() noexcept;

  TeamState* state_;
  std::int64_t* waited_ = nullptr;
  int index_;
  int count_;
  int phase_ = 0;
};

namespace internal {
using TeamBody = void (*)(void* context, Worker& worker);
void RunTeamImpl(int threads, TeamBody body, void* context) noexcept;
}  // namespace internal

/// Calls body(worker) on `threads` threads at once and returns when all are done. The threads are
/// those that SelectTeam names: this library's own, of which the calling thread is one and the
/// others are kept for it between calls and sleep when there is nothing to do; those of an OpenMP
/// region; or those of the executor that the program gave. There may be fewer: worker.count() is
/// the true number. On a machine so busy that team after team mostly sleeps at its barriers,
/// waiting for one that has no CPU, the calling thread works alone for ten times as long as the
/// last one slept. Denormals count as zero inside, and each thread's floating-point state is
/// afterwards what it was. `body` must not throw. A team within a team is one more set of own
/// threads, a nested OpenMP region as the host's OpenMP allows, and one worker of an executor.
/// Where MANYHEAD_TEAM names no team, which creators report, the threads are this library's own.
template <class Body>
void RunTeam(int threads, Body&& body) noexcept {
  internal::RunTeamImpl(
      threads,
      [](void* context, Worker& worker) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(worker);
      },
      &body);
}

}  // namespace manyhead
