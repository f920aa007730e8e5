#include "runtime/linear/gemm_onednn.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <signal.h>

#include "manyhead/isa.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {
namespace {

/// Keeps oneDNN on this thread: outside of a parallel region it would open one of its own.
class OneThread {
 public:
  OneThread() noexcept : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int saved_;
};

/// Blocks the signals of other processes and timers while oneDNN computes: the code that it
/// generates for AVX-512 points the stack register into its buffers, where a handler's frame would
/// overwrite the heap. Faults of this thread itself are not blocked.
class BlockSignals {
 public:
  BlockSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &saved_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace

void RunGemm(const GemmTask& task) noexcept {
  MANYHEAD_DCHECK(task.M > 0 && task.N > 0 && task.K > 0);
  bool done = false;
  try {  // the function is C, but it generates code in C++
    const OneThread one_thread;
    const BlockSignals block_signals;
    done = dnnl_sgemm('N', 'T', task.M, task.N, task.K, 1.0F, task.a, task.a_stride, task.b,
                      task.b_stride, task.accumulate ? 1.0F : 0.0F, task.c,
                      task.c_stride) == dnnl_success;
  } catch (...) {
    done = false;
  }
  if (!done) internal::PlainGemm(task);
}

void ConfigureGemm() {
  // Where memory ran out, the next caller tries again.
  [[maybe_unused]] static const bool configured = [] {
    const Result<Isa> isa = SelectIsa();
    if (!isa.ok() || *isa >= Isa::kAvx512) return true;
    // oneDNN refuses this when the program has used it before; the program's choice then remains.
    static_cast<void>(
        dnnl_set_max_cpu_isa(*isa == Isa::kAvx2 ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_sse41));
    return true;
  }();
}

void internal::PlainGemm(const GemmTask& task) noexcept {
  for (std::int64_t m = 0; m < task.M; ++m) {
    for (std::int64_t n = 0; n < task.N; ++n) {
      const float* a = task.a + m * task.a_stride;
      const float* b = task.b + n * task.b_stride;
      float* c = task.c + m * task.c_stride + n;
      float sum = task.accumulate ? *c : 0.0F;
      for (std::int64_t k = 0; k < task.K; ++k) sum += a[k] * b[k];
      *c = sum;
    }
  }
}

}  // namespace manyhead
