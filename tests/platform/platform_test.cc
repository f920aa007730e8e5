#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <immintrin.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/platform/team.h"
#include "runtime/platform/threads.h"
#include "tests/support/allocation_meter.h"

namespace manyhead {
namespace {

/// A file tree of its own for each test, for code that reads /proc and /sys below a root.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "manyhead_rootXXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The values of a public report on throttled barriers (ollama/ollama#17916): quotas round down,
// never to 0.
TEST(CgroupCpuLimit, QuotaOfVersion2RoundsDownToWholeCpus) {
  const struct {
    const char* cpu_max;
    int expected;
  } cases[] = {{"400000 100000", 4}, {"765000 100000", 7}, {"max 100000", 0}, {"50000 100000", 1}};
  for (const auto& [cpu_max, expected] : cases) {
    const FakeRoot root;
    root.Write("sys/fs/cgroup/cpu.max", cpu_max);
    EXPECT_EQ(internal::CgroupCpuLimit(root.path()), expected) << cpu_max;
  }
}

TEST(CgroupCpuLimit, ParentGroupLimitsItsChildren) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "0::/outer/inner");
  root.Write("sys/fs/cgroup/outer/cpu.max", "200000 100000");
  root.Write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000");
  EXPECT_EQ(internal::CgroupCpuLimit(root.path()), 2);
}

TEST(CgroupCpuLimit, QuotaOfVersion1) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "3:cpu,cpuacct:/job");
  root.Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000");
  root.Write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(internal::CgroupCpuLimit(root.path()), 3);
  root.Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(internal::CgroupCpuLimit(root.path()), 0);
}

TEST(CgroupCpuLimit, GarbageMeansNoLimit) {
  const FakeRoot root;
  root.Write("sys/fs/cgroup/cpu.max", "lots of CPUs");
  EXPECT_EQ(internal::CgroupCpuLimit(root.path()), 0);
  EXPECT_GE(DefaultThreads(), 1);
}

std::vector<int> Cpus(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

// The same report: quotas on a machine with this many CPUs.
TEST(ThreadsFor, IsTheTighterOfQuotaAndAffinity) {
  const struct {
    const char* cpu_max;
    int cpus, expected;
  } cases[] = {{"400000 100000", 8, 4}, {"765000 100000", 96, 7}, {"max 100000", 4, 4},
               {"50000 100000", 8, 1},  {"50000 100000", 1, 1},   {"800000 100000", 3, 3}};
  for (const auto& [cpu_max, cpus, expected] : cases) {
    const FakeRoot root;
    root.Write("sys/fs/cgroup/cpu.max", cpu_max);
    EXPECT_EQ(internal::ThreadsFor(root.path(), Cpus(cpus)), expected) << cpu_max;
  }
  const FakeRoot root;
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(internal::ThreadsFor(root.path(), Cpus(8)), 8);
  EXPECT_EQ(internal::ThreadsFor(root.path(), {}), 1);
}

// mozilla-ai/llamafile#765: threads beside their SMT siblings slow each other down. Two sockets of
// four cores, whose second threads are numbered 8 to 15.
TEST(ThreadsFor, SiblingsCountOnceOnEitherSocket) {
  const FakeRoot root;
  for (int cpu = 0; cpu < 16; ++cpu)
    root.Write(
        "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
        std::to_string(cpu % 8) + "," + std::to_string(cpu % 8 + 8));
  EXPECT_EQ(internal::ThreadsFor(root.path(), Cpus(16)), 8);
  EXPECT_EQ(internal::ThreadsFor(root.path(), Cpus(8)), 8);
  EXPECT_EQ(internal::ThreadsFor(root.path(), std::vector<int>{0, 1, 8, 9}), 2);
  EXPECT_EQ(internal::ThreadsFor(root.path(), std::vector<int>{3, 12}), 2);
  root.Write("sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(internal::ThreadsFor(root.path(), Cpus(16)), 3);
}

TEST(Team, EveryItemRunsOnceInEveryPhase) {
  for (int threads : {1, 2, 3, 8}) {
    std::vector<std::atomic<int>> runs(100);
    RunTeam(threads, [&](Worker& worker) {
      for (int phase = 0; phase < 50; ++phase)
        worker.ForEach(static_cast<std::int64_t>(runs.size()), [&](std::int64_t i) { ++runs[i]; });
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 50) << threads << " threads";
  }
}

TEST(Team, PhasesAreSeparatedByBarriers) {
  std::vector<std::int64_t> values(64, 0);
  std::atomic<int> mismatches = 0;
  RunTeam(4, [&](Worker& worker) {
    for (std::int64_t phase = 1; phase <= 200; ++phase)
      // Each item reads its mirror image, which another thread may have written in the phase
      // before.
      worker.ForEach(32,
                     [&](std::int64_t i) {
                       if (values[32 + i] != phase - 1) ++mismatches;
                       values[i] = phase;
                     }),
          worker.ForEach(32, [&](std::int64_t i) { values[63 - i] = values[31 - i]; });
  });
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(values[63], 200);
}

TEST(Team, AThreadTakesItsOwnRangeOfItemsFirst) {
  constexpr std::int64_t kItems = 1001;
  std::vector<int> owner(kItems, -1);
  std::atomic<int> began = 0;
  RunTeam(3, [&](Worker& worker) {
    worker.ForEach(kItems, [&](std::int64_t i) {
      owner[static_cast<std::size_t>(i)] = worker.index();
      if (began <
          worker.count()) {  // no thread takes a second item before all have taken their first
        ++began;
        while (began < worker.count()) sched_yield();
      }
    });
    EXPECT_EQ(owner[static_cast<std::size_t>(kItems * worker.index() / worker.count())],
              worker.index());
  });
  EXPECT_EQ(std::ranges::count(owner, -1), 0);
}

TEST(Team, AThreadLeavesTheCpuOfAnotherAndKeepsItsMask) {
  cpu_set_t process;
  ASSERT_EQ(sched_getaffinity(0, sizeof process, &process), 0);
  if (CPU_COUNT(&process) < 2) GTEST_SKIP() << "one CPU only";
  constexpr int kTries = 50;
  int apart = 0;
  RunTeam(2, [](Worker&) {});  // which allocates the team
  const std::size_t before = testing::NumAllocations();
  for (int i = 0; i < kTries; ++i) {
    std::atomic<int> cpu = -1;
    RunTeam(2, [&](Worker& worker) {
      if (worker.index() == 0) cpu = sched_getcpu();
      worker.Barrier();
      if (worker.index() == 1) {  // join the caller, as a scheduler might have it
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(cpu.load()), &one);
        EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        EXPECT_EQ(sched_setaffinity(0, sizeof process, &process), 0);
      }
    });
    int cpus[2] = {-1, -2};
    RunTeam(2, [&](Worker& worker) {
      cpus[worker.index()] = sched_getcpu();
      cpu_set_t mask;
      EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
      EXPECT_TRUE(CPU_EQUAL(&mask, &process));
    });
    apart += cpus[0] != cpus[1] ? 1 : 0;
  }
  EXPECT_GT(apart, kTries / 2);
  EXPECT_EQ(testing::NumAllocations() - before, 0U);
}

TEST(Team, WorksAloneForAWhileAfterSleepingThroughTeams) {
  if (DefaultThreads() < 2) GTEST_SKIP() << "one CPU only";
  const auto count = [](int sleeps_ms) {
    int members = 0;
    RunTeam(2, [&](Worker& worker) {
      if (worker.index() == 0) members = worker.count();
      if (worker.index() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(sleeps_ms));
      worker.Barrier();
    });
    return members;
  };
  // On a busy machine any team may be followed by work alone: what is asked for comes in the end.
  const auto comes = [&](int sleeps_ms, int members) {
    for (int i = 0; i < 200; ++i) {
      if (count(sleeps_ms) == members) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  };
  std::thread([&] {  // a thread has teams of its own
    ASSERT_TRUE(comes(0, 2));
    for (int i = 0; i < 3; ++i) count(30);
    EXPECT_EQ(count(0), 1);  // for 300 ms
    EXPECT_TRUE(comes(0, 2));
  })
      .join();
}

TEST(Team, AForkedProcessHasThreadsOfItsOwn) {
  const auto sum = [] {
    std::atomic<std::int64_t> total = 0;
    RunTeam(3, [&](Worker& worker) { worker.ForEach(100, [&](std::int64_t i) { total += i; }); });
    return total.load();
  };
  ASSERT_EQ(sum(), 4950);  // makes the parent's threads
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // ends a child that waits forever for threads of its parent
    _exit(sum() == 4950 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(sum(), 4950);
}

TEST(Team, DenormalsAreFlushedInsideAndTheCallersModeIsKept) {
  const unsigned before = _mm_getcsr();
  std::atomic<int> unflushed = 0;
  RunTeam(3, [&](Worker&) {
    if ((_mm_getcsr() & 0x8040U) != 0x8040U) ++unflushed;
  });
  EXPECT_EQ(unflushed.load(), 0);
  EXPECT_EQ(_mm_getcsr(), before);
}

}  // namespace
}  // namespace manyhead
