#include "tools/manyhead/interrupt.h"

#include <csignal>

namespace manyhead::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler sets it");

void HandleInterrupt(int signal) {
  interrupted.store(true);
  std::signal(signal, SIG_DFL);
}

}  // namespace

void CatchInterrupt() { std::signal(SIGINT, &HandleInterrupt); }

const std::atomic<bool>& Interrupted() noexcept { return interrupted; }

void Interrupt() noexcept { interrupted.store(true); }

}  // namespace manyhead::cli
