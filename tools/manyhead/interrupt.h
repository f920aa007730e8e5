#pragma once

#include <atomic>

namespace manyhead::cli {

/// Installs a handler: the first Ctrl-C sets Interrupted(); the second ends the process as usual.
void CatchInterrupt();

/// The flag that Ctrl-C sets; GenerateOptions::cancel can point to it.
const std::atomic<bool>& Interrupted() noexcept;

/// Ends the current job as Ctrl-C would, e.g. when nobody reads the output any more.
void Interrupt() noexcept;

}  // namespace manyhead::cli
