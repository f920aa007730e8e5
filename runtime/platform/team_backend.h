#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>

#include "runtime/platform/team.h"

/// \file
/// Defines what the three kinds of teams share: each starts the workers of a region, which then
/// meet at the barriers of Worker, whoever created their threads.

namespace manyhead::internal {

/// Starts regions. A process has one backend of each kind.
class TeamBackend {
 public:
  /// Calls `body` on at least one and at most `threads` workers that all run at the same time, each
  /// with denormals flushed, and returns when all are done. `threads` is at least 2.
  virtual void Run(int threads, TeamBody body, void* context) noexcept = 0;

 protected:
  ~TeamBackend() = default;
};

/// Returns the team of this library's own threads, kept by each calling thread.
TeamBackend& OwnTeam() noexcept;
/// Returns the team of the calling thread's OpenMP threads.
TeamBackend& OpenMpTeam() noexcept;

/// Returns the largest number of workers that a region of the calling thread can have in the
/// process's team, as far as it is known; kMaxThreads where nothing limits it.
int TeamLimit() noexcept;

/// Sets flush-to-zero and denormals-are-zero while it exists: a softmax tail of e^-95 would
/// otherwise run a hundred times slower. The mode belongs to each thread.
class FlushDenormals {
 public:
  FlushDenormals() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

/// Calls `body` as worker `index` of `count`, with denormals flushed.
inline void RunWorker(TeamState& state, int index, int count, TeamBody body,
                      void* context) noexcept {
  const FlushDenormals flush;
  Worker worker(state, index, count);
  body(context, worker);
}

/// Calls `body` as the only worker.
void RunAlone(TeamBody body, void* context) noexcept;

/// Time that a thread spins before it sleeps: about the time between the arrivals of an undisturbed
/// team's threads, and between two tokens. It is a time, not a number of pauses, since a pause
/// takes 5 to 60 ns, depending on the CPU. Waking a thread takes 50 microseconds on a virtual
/// machine.
constexpr std::int64_t kSpinNanoseconds = 100'000;

/// Returns true when `word` changed from `old` within a short spin. The spin offers the CPU to
/// others at times: the scheduler may have put the awaited thread on the same CPU.
bool SpinWhile(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept;

/// Records how the last teams of a calling thread went. After three teams in a row whose threads
/// slept for a quarter of their time or more, the thread works alone for a while; a single one may
/// be an accident. On a machine whose CPUs are all taken, each barrier waits for a time slice of
/// other processes: in these milliseconds one thread alone decodes many tokens of a small model.
class TeamBackoff {
 public:
  /// Returns true where the calling thread should work alone at the time `now`.
  bool WorksAlone(std::int64_t now) const noexcept { return now < alone_until_; }
  /// Records a team of `count` workers that began at `start` and has just ended.
  void Note(const TeamState& state, std::int64_t start, int count) noexcept;

 private:
  int bad_teams_ = 0;             ///< slow teams in a row
  std::int64_t alone_until_ = 0;  ///< time until which no team is started
};

}  // namespace manyhead::internal
