#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// The result of a job in a child process.
struct ChildProcessResult {
  Json value;
  std::int64_t peak_resident_bytes = 0;  ///< peak memory of that process, as the kernel counts it
};

/// Runs `job` in a child process, so that its memory is counted separately and released with the
/// process. Ctrl-C reaches the job as Interrupted(); its result is then ignored. The caller must
/// have no other threads.
///
/// Returns nothing when it was interrupted.
/// Errors   those of the job; kIoError where the process ends early.
Result<std::optional<ChildProcessResult>> RunInChildProcess(
    const std::function<Result<Json>()>& job);

}  // namespace manyhead::cli
