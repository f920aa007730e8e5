#pragma once

#include <atomic>

namespace manyhead::cli {

/// From now on the first Ctrl-C sets Interrupted(); the second ends the process as usual.
void CatchInterrupt();

/// Set by Ctrl-C; also what GenerateOptions::cancel takes.
const std::atomic<bool>& Interrupted() noexcept;

/// Ends the job in hand as Ctrl-C would, e.g. when nobody reads the output any more.
void Interrupt() noexcept;

}  // namespace manyhead::cli
