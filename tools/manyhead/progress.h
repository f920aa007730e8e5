#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace manyhead::cli {

/// Shows the progress of a long job on stderr, from its third second on: one line that is rewritten
/// on a terminal, otherwise a line every few seconds. Quick jobs print nothing.
class Progress {
 public:
  /// `label` such as "reading the prompt", `unit` such as "tokens".
  Progress(std::string label, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the progress; `total` 0 = unknown.
  void Update(std::int64_t done, std::int64_t total);
  /// Removes the line, so that other output starts at the margin.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_, unit_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_, next_;
};

/// Prints one line on stderr if it lives longer than two seconds: for steps whose progress is
/// unknown.
class SlowNotice {
 public:
  explicit SlowNotice(std::string message);
  ~SlowNotice();
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace manyhead::cli
