#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace manyhead {

/// The state that the threads of one parallel region share.
struct TeamState {
  static constexpr int kMaxRanges = 16;
  struct alignas(64) Counter {
    std::atomic<std::int64_t> next = 0;
  };

  Counter ranges[2][kMaxRanges];  ///< counters of items handed out, by range; used alternately
  bool may_spin = false;          ///< barriers may spin
  /// Time slept at barriers after a spin that did not suffice.
  std::atomic<std::int64_t> slept_ns = 0;
  alignas(64) std::atomic<std::int32_t> waiting = 0;  ///< threads that wait at the current barrier
  alignas(64) std::atomic<std::uint32_t> round = 0;   ///< barriers that have been passed
};

/// One thread's view of a parallel region. Code that runs on a team is called by every thread, each
/// with its own Worker (SPMD), so a whole token needs only one region: barriers separate its
/// phases.
class Worker {
 public:
  Worker(TeamState& state, int index, int count) noexcept
      : state_(&state), index_(index), count_(count) {}

  int index() const noexcept { return index_; }
  int count() const noexcept { return count_; }

  /// Adds the nanoseconds that this thread spends at barriers to `*waited` from now on; null = off.
  void CountWaits(std::int64_t* waited) noexcept { waited_ = waited; }

  /// Returns once every thread of the team has called it.
  void Barrier() noexcept {
    if (count_ > 1) TeamBarrier();
  }

  /// Runs fn(i) for each i in [0, items) and ends with a barrier. All threads must call it with the
  /// same `items`. A thread first takes the items of its own contiguous range, which is the same in
  /// every call, so that their data may still be in its caches; then it takes items left over in
  /// other ranges. An item may run on another thread each time, so its result must not depend on
  /// the thread: bits are equal for every number of threads.
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

/// Calls body(worker) on `threads` threads at once and returns when all have finished. The threads
/// are those that SelectTeam names: this library's own, of which the calling thread is one, while
/// the others are kept for it between calls and sleep when there is no work; those of an OpenMP
/// region; or those of the program's executor. There may be fewer: worker.count() is the true
/// number. On a machine so busy that several teams in a row mostly sleep at their barriers, waiting
/// for a thread without a CPU, the calling thread works alone for ten times as long as the last
/// team slept. Denormals count as zero inside, and each thread's floating-point state is restored
/// afterwards. `body` must not throw. A team inside a team is a further set of own threads, a
/// nested OpenMP region as the host's OpenMP allows, or one worker of an executor. Where
/// MANYHEAD_TEAM names no team, which creators report, the threads are this library's own.
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
