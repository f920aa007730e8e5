#include "runtime/linear/gemm_onednn.h"

#include <gtest/gtest.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "tests/linear/linear_testing.h"

/// Tests that need a process of their own: its thread count, its memory, and oneDNN's instruction
/// set, which ctest varies through MANYHEAD_ISA.

namespace manyhead {
namespace {

using namespace linear_testing;  // NOLINT(google-build-using-namespace)

/// Threads of a process; 0 when it is gone.
std::int64_t CountTasks(const std::string& process = "self") {
  std::error_code gone;
  return std::distance(std::filesystem::directory_iterator("/proc/" + process + "/task", gone),
                       std::filesystem::directory_iterator{});
}

std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

// ggml-org/llama.cpp#22956: twenty products on one thread, in a process that another looks at all
// the while. First in the file: the process is forked, and must have no thread yet.
TEST(GemmThreadsTest, OneThreadMeansOneTask) {
  ASSERT_EQ(CountTasks(), 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Matrix x = Matrix::RandomRows(16, 4096, 2);
    const RunOptions options = {SelectIsa().ok() ? *SelectIsa() : Isa::kScalar, MathMode::kFast, 1,
                                nullptr};
    bool same = true;
    for (const WeightType type : {WeightType::kQ8_0, WeightType::kF32}) {  // ours, and oneDNN's
      const Weight weight(type, 4096, 4096, 1);
      const Matrix first = Multiply(weight.view(), x, options);
      for (int repeat = 1; repeat < 20; ++repeat)
        same = same && first.Same(Multiply(weight.view(), x, options));
    }
    _exit(same ? 0 : 1);
  }
  std::int64_t most = 0, samples = 0;
  int status = 0;
  for (; waitpid(child, &status, WNOHANG) == 0; ++samples) {
    most = std::max(most, CountTasks(std::to_string(child)));
    usleep(500);
  }
  EXPECT_EQ(status, 0) << "the products differ";
  EXPECT_EQ(most, 1) << "of " << samples << " samples";
}

TEST(GemmIsaTest, FollowsTheEnvironment) {
  ConfigureGemm();
  const Result<Isa> isa = SelectIsa();
  ASSERT_TRUE(isa.ok()) << isa.status().message();
  const int effective = dnnl_get_effective_cpu_isa();
  if (*isa == Isa::kScalar) {
    EXPECT_EQ(effective, dnnl_cpu_isa_sse41);
  } else if (*isa == Isa::kAvx2) {
    EXPECT_EQ(effective, dnnl_cpu_isa_avx2);
  } else {
    EXPECT_EQ(effective & dnnl_cpu_isa_avx512_core, dnnl_cpu_isa_avx512_core);
  }
}

// openvinotoolkit/openvino#20633.
TEST(GemmMemoryTest, RowCountsLeaveNothingBehind) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory";
#endif
  const Weight weight(WeightType::kQ4_0, 128, 256, 3);
  Result<LinearWorkspace> workspace =
      LinearWorkspace::Create({256, 2000, 4, SupportedIsas().back(), MathMode::kFast});
  ASSERT_TRUE(workspace.ok());
  const Matrix x = Matrix::RandomRows(2000, 256, 4);
  Matrix y(2000, 128, 0);
  const LinearOutput output = {&weight.view(), y.data(), y.stride(), nullptr};
  const auto round = [&] {
    for (std::int64_t M = 1; M <= 2000; ++M)
      RunTeam(4, [&](Worker& worker) {
        RunLinear(worker, *workspace, x.data(), x.stride(), {.prefill = M}, {&output, 1});
      });
    return ResidentBytes();
  };
  const std::int64_t before = ResidentBytes(), first = round(), second = round();
  EXPECT_LE(first - before, 64 << 20);
  EXPECT_LE(second - first, 5 << 20);
}

TEST(GemmTest, BothPathsEqualTheDefinition) {
  struct Size {
    std::int64_t M, N, K;
  };
  for (const Size& size : {Size{24, 96, 256}, Size{48, 1, 1}, Size{1, 5, 7}, Size{72, 33, 19}}) {
    const Matrix a = Matrix::RandomRows(size.M, size.K, 5),
                 b = Matrix::RandomRows(size.N, size.K, 6);
    for (bool accumulate : {false, true}) {
      Matrix c(size.M, size.N, 1), plain(size.M, size.N, 1);  // NaN unless accumulated upon
      for (std::int64_t m = 0; accumulate && m < size.M; ++m)
        for (std::int64_t n = 0; n < size.N; ++n) c.row(m)[n] = plain.row(m)[n] = 0.5F;
      GemmTask task = {size.M,   size.N,     size.K,   a.data(),   a.stride(),
                       b.data(), b.stride(), c.data(), c.stride(), accumulate};
      RunGemm(task);
      task.c = plain.data();
      internal::PlainGemm(task);
      for (std::int64_t m = 0; m < size.M; ++m) {
        for (std::int64_t n = 0; n < size.N; ++n) {
          double sum = accumulate ? 0.5 : 0, magnitude = 1;
          for (std::int64_t k = 0; k < size.K; ++k) {
            sum += double{a.row(m)[k]} * double{b.row(n)[k]};
            magnitude += std::fabs(double{a.row(m)[k]} * double{b.row(n)[k]});
          }
          const double tolerance = static_cast<double>(size.K + 2) * 0x1p-24 * magnitude;
          ASSERT_NEAR(c.row(m)[n], sum, tolerance) << size.M << " " << size.N << " " << size.K;
          ASSERT_NEAR(plain.row(m)[n], sum, tolerance);
        }
      }
      EXPECT_TRUE(c.PaddingIntact());
    }
  }
}

}  // namespace
}  // namespace manyhead
