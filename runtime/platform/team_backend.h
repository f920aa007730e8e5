#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>

#include "runtime/platform/team.h"

/// \file
/// What the three ways to get threads share: each starts the workers of a region, which then meet
/// at the barriers of Worker whoever made their threads.

namespace manyhead::internal {

/// Starts regions. There is one of each kind in a process.
class TeamBackend {
 public:
  /// Calls `body` on at least one and at most `threads` workers that all run at the same time, each
  /// with denormals flushed, and returns when all are done. `threads` is at least 2.
  virtual void Run(int threads, TeamBody body, void* context) noexcept = 0;

 protected:
  ~TeamBackend() = default;
};

/// Threads of this library, kept by each calling thread.
TeamBackend& OwnTeam() noexcept;
/// OpenMP's threads of the calling thread.
TeamBackend& OpenMpTeam() noexcept;

/// The most workers that a region of the calling thread can have in the process's team, as far as
/// that is known; kMaxThreads where nothing limits them.
int TeamLimit() noexcept;

/// Flush-to-zero and denormals-are-zero for its lifetime: a softmax tail of e^-95 would otherwise
/// run a hundred times slower, and the mode is each thread's own.
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

/// As long as a fair team arrives apart, and a token from the next. In time, not in pauses: one
/// takes 5 to 60 ns, as the CPU has it. Waking a thread takes 50 microseconds on a virtual machine.
constexpr std::int64_t kSpinNanoseconds = 100'000;

/// True when `word` left `old` within a short spin. The CPU is offered to others at times: the
/// thread that is waited for may be one that the scheduler has put here too.
bool SpinWhile(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept;

/// Remembers how the last teams of a calling thread went. Teams whose threads slept for a quarter
/// of their time and more, three in a row, are not worth it; one may be an accident. Beside CPUs
/// that are all taken each barrier waits for a time slice of others, milliseconds in which one
/// thread alone decodes many tokens of a small model.
class TeamBackoff {
 public:
  /// Whether the calling thread should work alone at the time `now`.
  bool WorksAlone(std::int64_t now) const noexcept { return now < alone_until_; }
  /// Takes note of a team of `count` workers that began at `start` and has just ended.
  void Note(const TeamState& state, std::int64_t start, int count) noexcept;

 private:
  int bad_teams_ = 0;             ///< in a row
  std::int64_t alone_until_ = 0;  ///< no teams before it
};

}  // namespace manyhead::internal
