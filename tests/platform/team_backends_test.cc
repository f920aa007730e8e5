#include <gtest/gtest.h>
#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "manyhead/threads.h"
#include "runtime/platform/team.h"
#include "tools/examples/pool_executor.h"

// The same code on threads of this library, of OpenMP and of a program.

namespace manyhead {
namespace {

constexpr int kCounts[] = {1, 2, 3, 7};

class TeamBackends : public ::testing::TestWithParam<Team> {
 protected:
  void SetUp() override {
    saved_threads_ = omp_get_max_threads();
    omp_set_num_threads(7);  // more than this machine's CPUs may be
    ThreadsOptions options;
    options.team = GetParam();
    if (GetParam() == Team::kExecutor) {
      options = pool_.Options();
      options.join_timeout_us = 10'000'000;  // all workers come, however busy the machine is
    }
    ASSERT_TRUE(SetThreads(options).ok());
    ASSERT_EQ(*SelectTeam(), GetParam());
  }
  void TearDown() override {
    ASSERT_TRUE(SetThreads({}).ok());
    omp_set_num_threads(saved_threads_);
  }

 private:
  examples::PoolExecutor pool_{6};
  int saved_threads_ = 0;
};

/// The sum of 0..99, by a region of `threads` workers.
std::int64_t SumOf100(int threads) {
  std::atomic<std::int64_t> total = 0;
  RunTeam(threads,
          [&](Worker& worker) { worker.ForEach(100, [&](std::int64_t i) { total += i; }); });
  return total;
}

/// Runs body() in a child process and returns its exit code, or minus the signal that ended it.
template <class Body>
int InChild(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // ends a test that would wait forever
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_P(TeamBackends, WorkersAreNumberedAndCounted) {
  for (const int threads : kCounts) {
    std::mutex mutex;
    std::vector<int> indices, counts;
    RunTeam(threads, [&](Worker& worker) {
      worker.Barrier();
      const std::scoped_lock lock(mutex);
      indices.push_back(worker.index());
      counts.push_back(worker.count());
    });
    ASSERT_FALSE(indices.empty());
    EXPECT_LE(counts.front(), threads);
    EXPECT_EQ(indices.size(), static_cast<std::size_t>(counts.front()));
    std::sort(indices.begin(), indices.end());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      EXPECT_EQ(indices[i], static_cast<int>(i));
      EXPECT_EQ(counts[i], counts.front());
    }
  }
}

TEST_P(TeamBackends, AllThatAreAskedForComeInTheEnd) {
  int most = 0;  // on a busy machine some regions are done by one thread
  for (int tries = 0; tries < 200 && most < 3; ++tries) {
    RunTeam(3, [&](Worker& worker) {
      worker.Barrier();
      if (worker.index() == 0) most = std::max(most, worker.count());
    });
    if (most < 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(most, 3);
}

TEST_P(TeamBackends, EveryItemRunsOnceInEveryPhase) {
  for (const int threads : kCounts) {
    std::vector<std::atomic<int>> runs(101);
    for (int region = 0; region < 3; ++region) {
      RunTeam(threads, [&](Worker& worker) {
        for (int phase = 0; phase < 7; ++phase)  // an odd number: the next region starts again
          worker.ForEach(static_cast<std::int64_t>(runs.size()),
                         [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      });
    }
    for (const auto& count : runs) EXPECT_EQ(count.load(), 21) << threads << " threads";
  }
}

TEST_P(TeamBackends, PhasesAreSeparatedByBarriers) {
  for (const int threads : kCounts) {
    std::vector<std::int64_t> values(64, 0);
    std::atomic<int> mismatches = 0;
    RunTeam(threads, [&](Worker& worker) {
      for (std::int64_t phase = 1; phase <= 50; ++phase) {
        // Each item reads what another worker may have written in the phase before.
        worker.ForEach(32, [&](std::int64_t i) {
          if (values[static_cast<std::size_t>(32 + i)] != phase - 1) ++mismatches;
          values[static_cast<std::size_t>(i)] = phase;
        });
        worker.ForEach(32, [&](std::int64_t i) {
          values[static_cast<std::size_t>(63 - i)] = values[static_cast<std::size_t>(31 - i)];
        });
      }
    });
    EXPECT_EQ(mismatches.load(), 0) << threads << " threads";
    EXPECT_EQ(values[63], 50);
  }
}

TEST_P(TeamBackends, DenormalsAreFlushedInsideAndEachThreadsModeIsKept) {
  constexpr unsigned kFlush = 0x8040U;
  const unsigned before = _mm_getcsr();
  std::atomic<int> unflushed = 0, workers = 0;
  RunTeam(3, [&](Worker&) {
    ++workers;
    if ((_mm_getcsr() & kFlush) != kFlush) ++unflushed;
  });
  EXPECT_GE(workers.load(), 1);
  EXPECT_EQ(unflushed.load(), 0);
  EXPECT_EQ(_mm_getcsr(), before);
  std::atomic<int> flushing = 0;
#pragma omp parallel num_threads(3)
  if ((_mm_getcsr() & kFlush) != 0) ++flushing;
  EXPECT_EQ(flushing.load(), 0) << "threads of OpenMP were left in this library's mode";
}

TEST_P(TeamBackends, ATeamWithinATeamDoesTheSameWork) {
  std::atomic<int> right = 0, workers = 0;
  RunTeam(3, [&](Worker& worker) {
    ++workers;
    worker.Barrier();
    if (SumOf100(2) == 4950) ++right;
    worker.Barrier();
    if (SumOf100(3) == 4950) ++right;
  });
  EXPECT_EQ(right.load(), 2 * workers.load());
}

TEST_P(TeamBackends, HostsInTwoThreadsDoNotMeet) {
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> hosts;
    for (int host = 0; host < 2; ++host)
      hosts.emplace_back([&right] {
        for (const int threads : kCounts)
          for (int i = 0; i < 5; ++i) right += SumOf100(threads) == 4950 ? 1 : 0;
      });
  }
  EXPECT_EQ(right.load(), 40);
}

TEST_P(TeamBackends, AForkedProcessAndItsParentGoOn) {
  ASSERT_EQ(SumOf100(3), 4950);  // makes the parent's threads
  EXPECT_EQ(InChild([] { return SumOf100(3) == 4950 && *SelectTeam() == Team::kOwn ? 0 : 1; }), 0);
  EXPECT_EQ(SumOf100(3), 4950);
  EXPECT_EQ(*SelectTeam(), GetParam());
}

TEST_P(TeamBackends, WorksWhereTheSystemGivesNoThread) {
  const auto child = [this] {
    pthread_attr_t attributes;  // attributes of new threads, whose stacks cannot be allocated
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstacksize(&attributes, std::size_t{1} << 46) != 0 ||
        pthread_setattr_default_np(&attributes) != 0)
      return 2;
    if (GetParam() != Team::kExecutor && *SelectTeam() != GetParam()) return 3;
    return SumOf100(4) == 4950 ? 0 : 1;
  };
  int result = -1;  // result of a thread that has no team yet
  std::thread([&] { result = InChild(child); }).join();
  EXPECT_EQ(result, 0);
}

INSTANTIATE_TEST_SUITE_P(EveryTeam, TeamBackends,
                         ::testing::Values(Team::kOwn, Team::kOpenMp, Team::kExecutor),
                         [](const auto& test) { return std::string(TeamName(test.param)); });

/// Returns the number of workers in a region of at most `threads`.
int Members(int threads) {
  int members = 0;
  RunTeam(threads, [&](Worker& worker) {
    worker.Barrier();
    if (worker.index() == 0) members = worker.count();
  });
  return members;
}

class OpenMpTeam : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SetThreads({.team = Team::kOpenMp}).ok()); }
  void TearDown() override { ASSERT_TRUE(SetThreads({}).ok()); }
};

TEST_F(OpenMpTeam, IsNoLargerThanTheHostSays) {
  const int saved = omp_get_max_threads();
  for (const int limit : {3, 1, 2}) {
    omp_set_num_threads(limit);
    EXPECT_LE(Members(7), limit);
    EXPECT_LE(DefaultThreads(), limit);
    EXPECT_EQ(omp_get_max_threads(), limit);
  }
  omp_set_num_threads(saved);
}

TEST_F(OpenMpTeam, UsesTheThreadsThatTheHostHas) {
  const int saved = omp_get_max_threads();
  omp_set_num_threads(3);
  std::mutex mutex;
  std::vector<std::thread::id> host, team;
#pragma omp parallel num_threads(3)
  {
    const std::scoped_lock lock(mutex);
    host.push_back(std::this_thread::get_id());
  }
  for (int tries = 0; tries < 200 && team.size() != host.size(); ++tries) {
    team.clear();
    RunTeam(3, [&](Worker&) {
      const std::scoped_lock lock(mutex);
      team.push_back(std::this_thread::get_id());
    });
    if (team.size() != host.size()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::sort(host.begin(), host.end());
  std::sort(team.begin(), team.end());
  EXPECT_EQ(team, host);
  omp_set_num_threads(saved);
}

TEST_F(OpenMpTeam, IsOneThreadInAHostsRegionThatAllowsNoOther) {
  const int levels = omp_get_max_active_levels();
  std::atomic<int> wrong = 0, regions = 0;
#pragma omp parallel num_threads(2)
  {
    omp_set_max_active_levels(1);
    if (omp_get_num_threads() > 1 && Members(2) != 1) ++wrong;
    if (SumOf100(2) == 4950) ++regions;
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GE(regions.load(), 1);
  omp_set_max_active_levels(2);  // now a region within a region has threads of its own
#pragma omp parallel num_threads(2)
  if (SumOf100(2) != 4950) ++wrong;
  EXPECT_EQ(wrong.load(), 0);
  omp_set_max_active_levels(levels);
}

}  // namespace
}  // namespace manyhead
