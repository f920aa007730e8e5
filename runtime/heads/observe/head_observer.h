#pragma once

#include <optional>

#include "runtime/heads/observe/head_capture.h"
#include "runtime/heads/observe/head_profiler.h"
#include "runtime/model/attention_tap.h"

namespace manyhead {

/// Passes a session's attention to its capture and profile.
class HeadObserver final : public AttentionTap {
 public:
  std::optional<HeadCapture> capture;
  std::optional<HeadProfiler> profiler;

  bool is_idle() const noexcept { return !capture && !profiler; }

  void Observe(Worker& worker, const AttentionStep& step) noexcept override {
    if (profiler) profiler->Observe(worker, step);
    if (capture) capture->Observe(worker, step);
  }
  std::int64_t* head_times() noexcept override {
    return profiler ? profiler->head_times() : nullptr;
  }
  std::int64_t head_times_stride() const noexcept override {
    return profiler ? profiler->head_times_stride() : 0;
  }
};

}  // namespace manyhead
