#pragma once

#include <atomic>
#include <cstdint>

#include "manyhead/threads.h"
#include "runtime/platform/team_backend.h"

namespace manyhead::internal {

/// Starts regions on threads that the program's function provides. The function is asked for a
/// number of workers; those that come within a short time agree on how many they are before the
/// first of them enters the region, so that no barrier waits for a worker that never comes. An
/// executor that runs its tasks one after another gets a region of one worker, and its other tasks
/// return at once.
class ExecutorTeam final : public TeamBackend {
 public:
  /// Sets another executor, while no region runs. `cpus` is the number of CPUs that its threads may
  /// use.
  void Reset(const ThreadsOptions& options, int cpus) noexcept;

  void Run(int threads, TeamBody body, void* context) noexcept override;

  int max_workers() const noexcept { return options_.max_workers; }
  ExecutorUse use() const noexcept;

 private:
  /// Calls the function and returns how many workers came, possibly none.
  int Ask(int workers, std::int64_t start, TeamBody body, void* context) noexcept;

  ThreadsOptions options_{};
  int cpus_ = 1;
  std::uint64_t generation_ = 0;  ///< differs from one executor to the next
  std::atomic<std::int64_t> calls_ = 0, short_calls_ = 0, failed_calls_ = 0, alone_ = 0;
};

}  // namespace manyhead::internal
