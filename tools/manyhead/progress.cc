#include "tools/manyhead/progress.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>
#include <utility>

namespace manyhead::cli {
namespace {

constexpr std::chrono::milliseconds kQuietTime{2000};
constexpr std::chrono::milliseconds kTerminalInterval{200};
constexpr std::chrono::milliseconds kLogInterval{5000};

}  // namespace

Progress::Progress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(start_ + kQuietTime) {}

Progress::~Progress() { Clear(); }

void Progress::Update(std::int64_t done, std::int64_t total) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? kTerminalInterval : kLogInterval);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::string line = label_ + ": " + std::to_string(done);
  if (total > 0) {
    line += " of " + std::to_string(total) + " " + unit_;
    line += " (" + std::to_string(100 * done / total) + " %)";
  } else {
    line += " " + unit_;
  }
  std::fprintf(stderr, terminal_ ? "\r\033[K%s, %.0f s" : "%s, %.0f s\n", line.c_str(), seconds);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Clear() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

SlowNotice::SlowNotice(std::string message) {
  try {
    thread_ = std::thread([this, text = std::move(message)] {
      std::unique_lock lock(mutex_);
      if (!done_changed_.wait_for(lock, kQuietTime, [this] { return done_; }))
        std::fprintf(stderr, "%s ...\n", text.c_str());
    });
  } catch (const std::system_error&) {
    // Where no thread can be started, the job runs without the notice.
  }
}

SlowNotice::~SlowNotice() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  done_changed_.notify_one();
  thread_.join();
}

}  // namespace manyhead::cli
