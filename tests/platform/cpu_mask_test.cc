#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/platform/cpu_mask.h"
#include "runtime/platform/team.h"
#include "runtime/platform/threads.h"

// openvinotoolkit/openvino PR#26303, tensorflow/tensorflow PR#56633: a machine of 2048 possible
// CPUs refuses masks of 1024. A program of its own, whose functions below stand for the system's.

namespace {

constexpr int kFirstCpu = 1010, kCpus = 24;  // some with a place in a cpu_set_t, some without
constexpr std::size_t kMaskBytes = 256;

std::mutex g_mutex;
std::vector<std::vector<int>> g_masks_set;

}  // namespace

extern "C" int sched_getaffinity(pid_t, std::size_t bytes, cpu_set_t* mask) noexcept {
  if (bytes < kMaskBytes) {
    errno = EINVAL;
    return -1;
  }
  std::memset(mask, 0, bytes);
  for (int cpu = kFirstCpu; cpu < kFirstCpu + kCpus; ++cpu)
    CPU_SET_S(static_cast<std::size_t>(cpu), bytes, mask);
  return 0;
}

extern "C" int sched_setaffinity(pid_t, std::size_t bytes, const cpu_set_t* mask) noexcept {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < static_cast<int>(8 * bytes); ++cpu)
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, mask)) cpus.push_back(cpu);
  const std::scoped_lock lock(g_mutex);
  g_masks_set.push_back(cpus);
  return 0;
}

/// Every thread seems to run on the last of the CPUs.
extern "C" int sched_getcpu() noexcept { return kFirstCpu + kCpus - 1; }

namespace manyhead {
namespace {

std::vector<int> Cpus(int count) {
  std::vector<int> cpus;
  for (int i = 0; i < count; ++i) cpus.push_back(kFirstCpu + i);
  return cpus;
}

TEST(CpuMask, IsAsLargeAsTheSystemWants) {
  CpuMask mask;
  ASSERT_TRUE(mask.Read());
  EXPECT_EQ(mask.Count(), kCpus);
  EXPECT_EQ(mask.size(), 2048);
  EXPECT_FALSE(mask.Has(kFirstCpu - 1));
  EXPECT_TRUE(mask.Has(kFirstCpu));
  EXPECT_TRUE(mask.Has(kFirstCpu + kCpus - 1));
  EXPECT_FALSE(mask.Has(kFirstCpu + kCpus));
  EXPECT_FALSE(mask.Has(-1));
  EXPECT_FALSE(mask.Has(2048));
  mask.Remove(kFirstCpu);
  mask.Remove(-1);
  mask.Remove(1 << 20);
  EXPECT_EQ(mask.Count(), kCpus - 1);
  ASSERT_TRUE(mask.Read());
  EXPECT_EQ(mask.Count(), kCpus);
}

TEST(DefaultThreads, CountsEveryCpuOfAMachineOfMoreThan1024) {
  EXPECT_EQ(internal::AffinityCpus(), Cpus(kCpus));
  const int limit = internal::CgroupCpuLimit("");
  EXPECT_EQ(DefaultThreads(), limit == 0 ? kCpus : std::min(limit, kCpus));
}

TEST(Team, MovesOffATakenCpuBeyond1024) {
  std::atomic<int> entered = 0;
  int members = 0;
  for (int i = 0; i < 100 && members < 2; ++i) {
    RunTeam(2, [&](Worker& worker) {
      ++entered;
      worker.Barrier();
      if (worker.index() == 0) members = worker.count();
    });
    if (members < 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_EQ(members, 2);
  const std::scoped_lock lock(g_mutex);
  ASSERT_GE(g_masks_set.size(), 2U);  // away from the calling thread's CPU, then free again
  EXPECT_EQ(g_masks_set[0], Cpus(kCpus - 1));
  EXPECT_EQ(g_masks_set[1], Cpus(kCpus));
}

}  // namespace
}  // namespace manyhead
