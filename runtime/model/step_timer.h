#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "manyhead/step_profile.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Times the phases of a region on each of its threads. Off, which it is at first, a call is one
/// test of a pointer.
class StepTimer {
 public:
  /// Adds the regions of at most `threads` threads to `*profile` from now on; null = off.
  void SetProfile(StepProfile* profile, int threads);
  StepProfile* profile() const noexcept { return profile_; }

  /// Called by each thread at the start of a region.
  void Begin(Worker& worker) noexcept {
    if (profile_ != nullptr) BeginLane(worker);
  }
  /// Called by each thread after the barrier that ends `phase`: what passed since the mark before
  /// is its time.
  void Mark(const Worker& worker, StepPhase phase) noexcept {
    if (profile_ != nullptr) MarkLane(worker.index(), phase);
  }
  /// What passed since the mark before belongs to no phase.
  void Skip(const Worker& worker) noexcept {
    if (profile_ != nullptr) SkipLane(worker.index());
  }
  /// Called by one thread after the region.
  void Collect() noexcept;

 private:
  /// One thread's times in the region; apart from the others' in memory.
  struct alignas(64) Lane {
    bool is_used = false;
    std::int64_t last_mark = 0;
    std::int64_t waited = 0;  // since then
    std::array<std::int64_t, kNumStepPhases> total{}, waiting{};
  };

  void BeginLane(Worker& worker) noexcept;
  void MarkLane(int thread, StepPhase phase) noexcept;
  void SkipLane(int thread) noexcept;

  StepProfile* profile_ = nullptr;
  std::vector<Lane> lanes_;
};

}  // namespace manyhead
