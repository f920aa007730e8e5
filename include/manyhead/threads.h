#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "manyhead/export.h"
#include "manyhead/status.h"

/// \file
/// Selects the threads of parallel work: how many there are, and who starts them.
///
/// The team belongs to the process, not to a session or a plan: threads compete for the same CPUs
/// whoever starts them. So a program that has a thread pool wants all work in it, also work without
/// options of its own, such as packing weights while a model is loaded. Each session, plan and call
/// says how many of the team's threads it uses (`threads`). Results are bitwise the same in every
/// team.

namespace MANYHEAD_API manyhead {

/// The largest thread count that any function of this library accepts.
inline constexpr int kMaxThreads = 1024;

/// Returns the thread count used where the caller gives none: the number of CPUs in this thread's
/// affinity mask, no more than the cgroup's quota rounded down, at least 1. SMT siblings count
/// once. Sockets are not distinguished: where the memory of another socket is slow, bind the
/// program to one socket (numactl). In OpenMP's team the CPUs are those of OMP_PLACES, where that
/// or OMP_PROC_BIND is set, and there are no more threads than OMP_NUM_THREADS; with an executor,
/// no more than its max_workers.
int DefaultThreads();

/// Says who starts the threads of parallel work.
enum class Team : std::uint8_t {
  kOwn,       ///< this library: each calling thread keeps threads that sleep between calls
  kOpenMp,    ///< OpenMP: a region for each parallel step, of the calling thread's OpenMP threads
  kExecutor,  ///< a function of the program; see ThreadsOptions
};

/// Returns "own", "openmp" or "executor".
const char* TeamName(Team team) noexcept;
/// Parses a name that TeamName returns; returns nothing for any other name.
std::optional<Team> ParseTeam(std::string_view name) noexcept;

/// A worker's part of a parallel step: call it as task(task_context, worker). It does not throw.
using ExecutorTask = void (*)(void* task_context, int worker);

/// A function of the program that runs workers: it calls task(task_context, i) once for each i from
/// 0 to num_workers - 1, from num_workers threads at the same time, and returns when all these
/// calls have returned. The calling thread may be one of the threads.
///
/// Workers wait for each other at barriers, so tasks that wait in a queue until others are done do
/// no work. The workers that arrive within `join_timeout_us` of the first agree on their number and
/// do the whole step; a call of `task` after that returns at once. So the step is done, with equal
/// results, whatever the executor does:
///
/// | the executor                              | the step                                        |
/// |-------------------------------------------|-------------------------------------------------|
/// | gives fewer threads                       | is done by those, after `join_timeout_us`       |
/// | runs its tasks one after another          | is done by the first task alone                 |
/// | calls a task twice, or with a wrong index | such calls return at once                       |
/// | throws, or returns without a call         | is done by those that came, else by the caller  |
/// | returns before its tasks have             | is done by those that came in time; later calls |
/// |                                           | of `task` are allowed and do no harm            |
///
/// An executor that gives fewer workers three times in a row is asked, for one second, for no more
/// than the largest of these numbers. A parallel step inside a worker, or inside a task that the
/// executor runs while it waits, has one worker and does not call the executor.
///
/// Threads   Called by every thread that uses the library, also by two at the same time; an
///           executor that has no free threads then may call task(task_context, 0) alone.
using ExecutorRun = void (*)(void* context, int num_workers, ExecutorTask task, void* task_context);

/// Selects the team of the process.
struct ThreadsOptions {
  std::optional<Team> team{};  ///< none = what MANYHEAD_TEAM names, or else own threads
  ExecutorRun run = nullptr;   ///< function of Team::kExecutor; null for other teams
  void* context = nullptr;     ///< first argument of `run`
  int max_workers = 0;  ///< threads that `run` has, an upper bound for its workers; 0 = unknown
  std::int64_t join_timeout_us = 1000;  ///< time in microseconds that workers wait for all others
};

/// Sets the process's team. An executor and its context must last until another team is set. A step
/// that is running continues with the threads that it has.
///
/// In a child of fork there is no executor, because its threads do not exist there: the team is
/// again that of MANYHEAD_TEAM or own threads. A thread that has used OpenMP's team before it forks
/// gets own threads in the child, where OpenMP would wait forever for threads of the parent.
///
/// Errors    kInvalidArgument for options that are out of range or contradict each other;
///           kUnsupported while the current executor runs a step, also when a worker calls this.
///           The team is then unchanged.
/// Threads   May be called by any thread at any time.
Status SetThreads(const ThreadsOptions& options);

/// Returns the team of the calling thread's next parallel step: the one that SetThreads set, or
/// else the one that the environment variable MANYHEAD_TEAM named when a team was first needed: own
/// or openmp.
///
/// Errors    kInvalidArgument for an unknown name in MANYHEAD_TEAM; Model::Load, Session::Create,
///           AttentionPlan::Create and MultiHeadAttention::Create return it.
Result<Team> SelectTeam();

/// Counts of the parallel steps since an executor was set.
struct ExecutorUse {
  std::int64_t calls = 0;         ///< calls of `run`
  std::int64_t short_calls = 0;   ///< calls for which fewer workers came than were asked for
  std::int64_t failed_calls = 0;  ///< calls in which `run` threw or no worker came
  std::int64_t alone = 0;         ///< steps that the calling thread did alone, some after a call
};

/// Returns the counts of the current executor; zeros where there is none.
ExecutorUse GetExecutorUse() noexcept;

}  // namespace manyhead
