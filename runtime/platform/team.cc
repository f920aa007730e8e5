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

void Worker::TeamBarrier() noexcept {
#pragma omp barrier
}

namespace internal {

void RunTeamImpl(int threads, TeamBody body, void* context) noexcept {
  TeamState state;
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
