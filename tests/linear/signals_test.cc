#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/linear/gemm_onednn.h"

namespace manyhead {
namespace {

std::atomic<int> g_signals = 0;

void CountSignal(int) { ++g_signals; }

// oneDNN's AVX-512 code keeps its buffers where the stack register points: the frame of a handler
// that ran there overwrote the heap (a Ctrl-C while a prompt was read ended in SIGABRT).
TEST(Signals, HandlersMayRunAtAnyMomentOfAProduct) {
  struct sigaction action = {}, before = {};
  action.sa_handler = CountSignal;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often = {{0, 200}, {0, 200}}, never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  constexpr std::int64_t M = 96, N = 96, K = 640;
  const std::vector<float> ones(M * K, 1.0F);
  std::vector<float> c(M * N);
  int products = 0;
  for (; g_signals < 200 && products < 20000; ++products) {
    RunGemm({.M = M,
             .N = N,
             .K = K,
             .a = ones.data(),
             .a_stride = K,
             .b = ones.data(),
             .b_stride = K,
             .c = c.data(),
             .c_stride = N,
             .accumulate = false});
    const std::vector<char> allocated(1000, 1);  // the allocator's own bookkeeping is what was hit
    ASSERT_EQ(c.front(), static_cast<float>(K)) << products;
    ASSERT_EQ(c.back(), static_cast<float>(K)) << products;
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GE(g_signals, 100) << "in " << products << " products";
}

}  // namespace
}  // namespace manyhead
