#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "manyhead/step_profile.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Times the phases of a region on each of its threads. When it is off, the default, a call only
/// tests a pointer.
class StepTimer {
 public:
  /// Adds the regions of at most `threads` threads to `*profile` from now on; null = off.
  void SetProfile(StepProfile* profile, int threads);
  StepProfile* profile() const noexcept { return profile_; }

  /// Called by each thread at the start of a region.
  void Begin(Worker& worker) noexcept {
    if (profile_ != nullptr) BeginLane(worker);
  }
  /// Called by each thread after the barrier that ends `phase`: the time since the previous mark
  /// belongs to the phase.
  void Mark(const Worker& worker, StepPhase phase) noexcept {
    if (profile_ != nullptr) MarkLane(worker.index(), phase);
  }
  /// Assigns the time since the previous mark to no phase.
  void Skip(const Worker& worker) noexcept {
    if (profile_ != nullptr) SkipLane(worker.index());
  }
  /// Called by one thread after the region.
  void Collect() noexcept;

 private:
  /// The times of one thread in the region, on cache lines of its own.
  struct alignas(64) Lane {
    bool is_used = false;
    std::int64_t last_mark = 0;
    std::int64_t waited = 0;  // time waited since the mark
    std::array<std::int64_t, kNumStepPhases> total{}, waiting{};
  };

  void BeginLane(Worker& worker) noexcept;
  void MarkLane(int thread, StepPhase phase) noexcept;
  void SkipLane(int thread) noexcept;

  StepProfile* profile_ = nullptr;
  std::vector<Lane> lanes_;
};

}  // namespace manyhead
