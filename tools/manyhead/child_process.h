#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// What a job came to in a process of its own.
struct ChildProcessResult {
  Json value;
  std::int64_t peak_resident_bytes = 0;  ///< of that process, as the kernel counts it
};

/// Runs `job` in a child process, so that the memory it takes is its own and goes away with it.
/// Ctrl-C reaches the job as Interrupted(); what it then returns does not count. The caller has no
/// threads.
///
/// Returns nothing when it was interrupted.
/// Errors   those of the job; kIoError where the process ends early.
Result<std::optional<ChildProcessResult>> RunInChildProcess(
    const std::function<Result<Json>()>& job);

}  // namespace manyhead::cli
