#include "runtime/platform/team.h"

#include <immintrin.h>
#include <omp.h>

namespace manyhead {
namespace {

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

}  // namespace

/// Spins for about as long as the threads of an undisturbed team arrive apart, then sleeps: where
/// other processes or a CPU quota keep one of them from running, a longer spin would only take its
/// CPU away. A team larger than the machine never spins.
void Worker::TeamBarrier() noexcept {
  constexpr int kSpins = 1000;  // pauses: 20 to 60 microseconds
  const std::uint32_t round = state_->round.load(std::memory_order_relaxed);
  if (state_->waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    state_->waiting.store(0, std::memory_order_relaxed);
    state_->round.store(round + 1, std::memory_order_release);
    state_->round.notify_all();
    return;
  }
  const int spins = count_ <= state_->cpus ? kSpins : 0;
  for (int i = 0; i < spins; ++i) {
    if (state_->round.load(std::memory_order_acquire) != round) return;
    _mm_pause();
  }
  state_->round.wait(round, std::memory_order_acquire);
}

namespace internal {

void RunTeamImpl(int threads, TeamBody body, void* context) noexcept {
  TeamState state;
  state.cpus = omp_get_num_procs();
  if (threads <= 1) {
    FlushDenormals flush;
    Worker worker(state, 0, 1);
    body(context, worker);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    FlushDenormals flush;
    Worker worker(state, omp_get_thread_num(), omp_get_num_threads());
    body(context, worker);
  }
}

}  // namespace internal
}  // namespace manyhead
