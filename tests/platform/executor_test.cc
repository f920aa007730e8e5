#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "manyhead/threads.h"
#include "runtime/platform/team.h"
#include "tools/examples/pool_executor.h"

// Executors as programs may write them, also wrong ones: the work is done, and no thread waits
// forever.

namespace manyhead {
namespace {

using ::testing::HasSubstr;

/// The effects of one region.
struct Region {
  int members = 0;         ///< worker.count()
  int entered = 0;         ///< workers that ran the body
  std::int64_t total = 0;  ///< sum of 0..99
};

Region RunRegion(int threads) {
  Region region;
  std::atomic<int> entered = 0;
  std::atomic<std::int64_t> total = 0;
  RunTeam(threads, [&](Worker& worker) {
    ++entered;
    worker.ForEach(100, [&](std::int64_t i) { total += i; });
    worker.Barrier();
    if (worker.index() == 0) region.members = worker.count();
  });
  region.entered = entered;
  region.total = total;
  return region;
}

class Executor : public ::testing::Test {
 protected:
  using Function = std::function<void(int, ExecutorTask, void*)>;

  void TearDown() override { ASSERT_TRUE(SetThreads({}).ok()); }

  /// Sets `function` as the team.
  Status Set(Function function, std::int64_t join_timeout_us = 2000, int max_workers = 0) {
    function_ = std::move(function);
    ThreadsOptions options;
    options.team = Team::kExecutor;
    options.run = [](void* context, int workers, ExecutorTask task, void* task_context) {
      (*static_cast<Function*>(context))(workers, task, task_context);
    };
    options.context = &function_;
    options.join_timeout_us = join_timeout_us;
    options.max_workers = max_workers;
    return SetThreads(options);
  }

 private:
  Function function_;
};

constexpr std::int64_t kPatient = 20'000'000;  // microseconds: all that come are waited for

/// Calls tasks 0 .. workers - 1 on threads of their own, and none on the calling one.
void OnThreads(int workers, ExecutorTask task, void* task_context) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < workers; ++i) threads.emplace_back([=] { task(task_context, i); });
}

void ExpectWhole(const Region& region, int members) {
  EXPECT_EQ(region.total, 4950);
  EXPECT_EQ(region.members, members);
  EXPECT_EQ(region.entered, members);
}

TEST_F(Executor, MayLeaveTheCallingThreadOut) {
  ASSERT_TRUE(Set(OnThreads, kPatient).ok());
  for (const int threads : {2, 3, 7}) ExpectWhole(RunRegion(threads), threads);
  const ExecutorUse use = GetExecutorUse();
  EXPECT_EQ(use.calls, 3);
  EXPECT_EQ(use.short_calls + use.failed_calls + use.alone, 0);
}

TEST_F(Executor, IsNotAskedForOneWorker) {
  int calls = 0;
  ASSERT_TRUE(Set([&](int, ExecutorTask, void*) { ++calls; }).ok());
  ExpectWhole(RunRegion(1), 1);
  EXPECT_EQ(calls, 0);
}

TEST_F(Executor, ThatRunsTasksOneAfterAnotherGetsOneWorker) {
  ASSERT_TRUE(Set([](int workers, ExecutorTask task, void* context) {
                for (int i = 0; i < workers; ++i) task(context, i);
              }).ok());
  for (int i = 0; i < 3; ++i) ExpectWhole(RunRegion(4), 1);
  EXPECT_EQ(GetExecutorUse().short_calls, 3);
  ExpectWhole(RunRegion(4), 1);  // it is known by now, and not waited for
  EXPECT_EQ(GetExecutorUse().calls, 3);
  EXPECT_EQ(GetExecutorUse().alone, 1);
}

TEST_F(Executor, WithFewerThreadsGetsThatManyWorkers) {
  examples::PoolExecutor pool(2);  // and the calling thread
  ThreadsOptions options = pool.Options();
  options.join_timeout_us = 1'000'000;
  options.max_workers = 0;
  ASSERT_TRUE(SetThreads(options).ok());
  for (int i = 0; i < 3; ++i) ExpectWhole(RunRegion(7), 3);
  EXPECT_EQ(GetExecutorUse().short_calls, 3);
  ExpectWhole(RunRegion(7), 3);  // it is asked for three now
  EXPECT_EQ(GetExecutorUse().short_calls, 3);
  EXPECT_EQ(GetExecutorUse().calls, 4);
}

TEST_F(Executor, IsNeverAskedForMoreThanItsMaximum) {
  std::atomic<int> most = 0;
  ASSERT_TRUE(Set(
                  [&](int workers, ExecutorTask task, void* context) {
                    most = std::max(most.load(), workers);
                    OnThreads(workers, task, context);
                  },
                  kPatient, 3)
                  .ok());
  ExpectWhole(RunRegion(7), 3);
  ExpectWhole(RunRegion(2), 2);
  EXPECT_EQ(most.load(), 3);
  EXPECT_LE(DefaultThreads(), 3);
  EXPECT_EQ(GetExecutorUse().short_calls, 0);
}

TEST_F(Executor, ThatRepeatsTasksOrInventsIndicesIsNotFollowed) {
  ASSERT_TRUE(Set(
                  [](int workers, ExecutorTask task, void* context) {
                    std::vector<std::jthread> threads;
                    for (const int i : {0, 0, 1, 1, -1, workers, 5000, 2})
                      threads.emplace_back([=] { task(context, i); });
                  },
                  kPatient)
                  .ok());
  for (int i = 0; i < 5; ++i) ExpectWhole(RunRegion(3), 3);
}

TEST_F(Executor, ThatRepeatsOneTaskOnlyGetsOneWorker) {
  ASSERT_TRUE(Set([](int workers, ExecutorTask task, void* context) {
                std::vector<std::jthread> threads;
                for (int i = 0; i < workers; ++i)
                  threads.emplace_back([=] { task(context, workers - 1); });
              }).ok());
  ExpectWhole(RunRegion(3), 1);
}

TEST_F(Executor, ThatThrowsIsDoneWithout) {
  ASSERT_TRUE(Set([](int, ExecutorTask, void*) { throw std::runtime_error("no threads"); }).ok());
  ExpectWhole(RunRegion(3), 1);
  EXPECT_EQ(GetExecutorUse().failed_calls, 1);
  EXPECT_EQ(GetExecutorUse().alone, 1);
  ASSERT_TRUE(Set([](int, ExecutorTask task, void* context) {
                std::jthread late([=] { task(context, 1); });
                throw 7;  // after one has come
              }).ok());
  ExpectWhole(RunRegion(3), 1);
  EXPECT_EQ(GetExecutorUse().failed_calls, 1);
  EXPECT_EQ(GetExecutorUse().alone, 0);
}

TEST_F(Executor, ThatCallsNothingIsDoneWithout) {
  ASSERT_TRUE(Set([](int, ExecutorTask, void*) {}).ok());
  for (int i = 0; i < 5; ++i) ExpectWhole(RunRegion(3), 1);
  EXPECT_EQ(GetExecutorUse().calls, 3);
  EXPECT_EQ(GetExecutorUse().alone, 5);
}

// A function that posts its tasks and returns: some run while the region does, some after it.
TEST_F(Executor, ThatReturnsEarlyDoesNoHarm) {
  std::vector<std::jthread> threads;
  int waits_us = 0;
  ASSERT_TRUE(Set([&](int workers, ExecutorTask task, void* context) {
                for (int i = 0; i < workers; ++i) threads.emplace_back([=] { task(context, i); });
                std::this_thread::sleep_for(std::chrono::microseconds(waits_us));
              }).ok());
  for (int i = 0; i < 40; ++i) {
    waits_us = 100 * (i % 5);
    const Region region = RunRegion(3);
    EXPECT_EQ(region.total, 4950);
    EXPECT_GE(region.members, 1);
    EXPECT_LE(region.members, 3);
    EXPECT_EQ(region.entered, region.members);
    // Let it be asked again, although it gave too few workers.
    if (i % 20 == 19) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
  threads.clear();
}

// A task of one region that is called when the next one runs.
TEST_F(Executor, WhoseTaskIsARegionLateJoinsTheNextOrNone) {
  ExecutorTask late_task = nullptr;
  void* late_context = nullptr;
  ASSERT_TRUE(Set(
                  [&](int workers, ExecutorTask task, void* context) {
                    late_task = task;
                    late_context = context;
                    OnThreads(workers, task, context);
                  },
                  kPatient)
                  .ok());
  ExpectWhole(RunRegion(2), 2);
  late_task(late_context, 0);  // no region is open
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Set(
                    [&](int, ExecutorTask task, void* context) {
                      std::jthread late([&] { late_task(late_context, 1); });
                      std::jthread other([=] { task(context, 1); });
                      task(context, 0);
                    },
                    kPatient)
                    .ok());
    ExpectWhole(RunRegion(2), 2);
  }
}

TEST_F(Executor, IsNotCalledByARegionWithinARegion) {
  std::atomic<int> calls = 0, right = 0;
  ASSERT_TRUE(Set(
                  [&](int workers, ExecutorTask task, void* context) {
                    ++calls;
                    OnThreads(workers, task, context);
                  },
                  kPatient)
                  .ok());
  RunTeam(3, [&](Worker& worker) {
    const Region inner = RunRegion(2);
    if (inner.members == 1 && inner.total == 4950) ++right;
    worker.Barrier();
  });
  EXPECT_EQ(right.load(), 3);
  EXPECT_EQ(calls.load(), 1);
}

// A pool that takes up other work of the program while it waits.
TEST_F(Executor, ThatUsesTheLibraryWhileItWaitsIsNotCalledAgain) {
  Region inner;
  ASSERT_TRUE(Set(
                  [&](int workers, ExecutorTask task, void* context) {
                    std::jthread one([=] { task(context, 0); });
                    std::jthread two([=] { task(context, 1); });
                    inner = RunRegion(workers);
                  },
                  kPatient)
                  .ok());
  ExpectWhole(RunRegion(2), 2);
  ExpectWhole(inner, 1);
}

TEST_F(Executor, IsCalledByTwoHostsAtOnce) {
  examples::PoolExecutor pool(2);
  ASSERT_TRUE(SetThreads(pool.Options()).ok());
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> hosts;
    for (int host = 0; host < 3; ++host)
      hosts.emplace_back([&] {
        for (int i = 0; i < 100; ++i) right += RunRegion(3).total == 4950 ? 1 : 0;
      });
  }
  EXPECT_EQ(right.load(), 300);
}

TEST_F(Executor, IsReplacedOnlyWhereItIsNotInUse) {
  ASSERT_TRUE(Set(OnThreads, kPatient).ok());
  std::atomic<int> refused = 0;
  RunTeam(2, [&](Worker& worker) {
    for (const auto& options : {ThreadsOptions{}, ThreadsOptions{.team = Team::kOpenMp}}) {
      const Status status = SetThreads(options);
      if (status.code() == StatusCode::kUnsupported &&
          status.message().find("in use by 1 region; expected none") != std::string::npos)
        ++refused;
      worker.Barrier();
    }
  });
  EXPECT_GE(refused.load(), 2);  // some of the four may meet each other
  EXPECT_EQ(*SelectTeam(), Team::kExecutor);
  ExpectWhole(RunRegion(2), 2);
  examples::PoolExecutor pool(1);
  for (int i = 0; i < 4; ++i) {  // one after another
    ThreadsOptions options = pool.Options();
    options.join_timeout_us = kPatient;
    ASSERT_TRUE(SetThreads(options).ok());
    EXPECT_EQ(GetExecutorUse().calls, 0);
    ExpectWhole(RunRegion(2), 2);
    EXPECT_EQ(GetExecutorUse().calls, 1);
  }
  ASSERT_TRUE(SetThreads({.team = Team::kOwn}).ok());
  EXPECT_EQ(GetExecutorUse().calls, 0);
}

TEST_F(Executor, IsSetByManyWhileOthersWork) {
  examples::PoolExecutor pool(2);
  std::atomic<bool> ends = false;
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> hosts;
    for (int host = 0; host < 2; ++host)
      hosts.emplace_back([&] {
        while (!ends) wrong += RunRegion(3).total == 4950 ? 0 : 1;
      });
    for (int i = 0; i < 300; ++i) {
      const Status status = SetThreads(i % 3 == 0   ? ThreadsOptions{.team = Team::kOwn}
                                       : i % 3 == 1 ? pool.Options()
                                                    : ThreadsOptions{.team = Team::kOpenMp});
      if (!status.ok() && status.code() != StatusCode::kUnsupported) ++wrong;
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    ends = true;
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Executor, IsLeftToTheParentByAFork) {
  std::atomic<int> calls = 0;
  ASSERT_TRUE(Set([&](int workers, ExecutorTask task, void* context) {
                ++calls;
                OnThreads(workers, task, context);
              }).ok());
  ASSERT_EQ(RunRegion(2).total, 4950);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    const bool left = *SelectTeam() != Team::kExecutor && RunRegion(2).total == 4950 && calls == 1;
    const bool set_anew = Set(OnThreads, kPatient).ok() && RunRegion(2).members == 2;
    _exit(left && set_anew ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*SelectTeam(), Team::kExecutor);
}

TEST_F(Executor, OptionsThatContradictEachOtherAreRefused) {
  const ExecutorRun run = [](void*, int, ExecutorTask, void*) {};
  const struct {
    ThreadsOptions options;
    const char* words;
  } cases[] = {
      {{.team = Team::kExecutor}, "team = executor, but run is null"},
      {{.run = run}, "run is given, but team = none"},
      {{.team = Team::kOwn, .run = run}, "run is given, but team = own"},
      {{.team = static_cast<Team>(9)}, "team = 9"},
      {{.team = Team::kExecutor, .run = run, .max_workers = -1}, "max_workers = -1"},
      {{.team = Team::kExecutor, .run = run, .max_workers = 1025}, "expected 0 to 1024"},
      {{.team = Team::kExecutor, .run = run, .join_timeout_us = -1}, "join_timeout_us = -1"},
      {{.team = Team::kExecutor, .run = run, .join_timeout_us = 60'000'001}, "60000000"},
  };
  ASSERT_TRUE(SetThreads({.team = Team::kOpenMp}).ok());
  for (const auto& [options, words] : cases) {
    const Status status = SetThreads(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_EQ(*SelectTeam(), Team::kOpenMp);
  }
}

}  // namespace
}  // namespace manyhead
