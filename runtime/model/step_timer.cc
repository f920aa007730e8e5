#include "runtime/model/step_timer.h"

#include <algorithm>

#include "runtime/platform/clock.h"

namespace manyhead {

const char* StepPhaseName(StepPhase phase) noexcept {
  switch (phase) {
    case StepPhase::kEmbedding:
      return "embedding";
    case StepPhase::kQueryKeyValue:
      return "query/key/value";
    case StepPhase::kRotaryAndWrite:
      return "rotary + cache write";
    case StepPhase::kAttention:
      return "attention";
    case StepPhase::kAttentionOutput:
      return "attention output";
    case StepPhase::kNorms:
      return "norms + additions";
    case StepPhase::kGateUp:
      return "gate/up";
    case StepPhase::kActivation:
      return "activation";
    case StepPhase::kDown:
      return "down";
    case StepPhase::kHead:
      return "head";
  }
  return "?";
}

void StepTimer::SetProfile(StepProfile* profile, int threads) {
  lanes_.assign(profile == nullptr ? 0 : static_cast<std::size_t>(threads), {});
  profile_ = profile;
}

void StepTimer::BeginLane(Worker& worker) noexcept {
  Lane& lane = lanes_[static_cast<std::size_t>(worker.index())];
  lane = {.is_used = true, .last_mark = SteadyNanoseconds()};
  worker.CountWaits(&lane.waited);
}

void StepTimer::MarkLane(int thread, StepPhase phase) noexcept {
  Lane& lane = lanes_[static_cast<std::size_t>(thread)];
  const std::int64_t now = SteadyNanoseconds();
  lane.total[static_cast<std::size_t>(phase)] += now - lane.last_mark;
  lane.waiting[static_cast<std::size_t>(phase)] += lane.waited;
  lane.last_mark = now;
  lane.waited = 0;
}

void StepTimer::SkipLane(int thread) noexcept {
  Lane& lane = lanes_[static_cast<std::size_t>(thread)];
  lane.last_mark = SteadyNanoseconds();
  lane.waited = 0;
}

void StepTimer::Collect() noexcept {
  if (profile_ == nullptr) return;
  const auto used = static_cast<double>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.is_used; }));
  for (Lane& lane : lanes_) {
    for (std::size_t i = 0; i < kNumStepPhases; ++i) {
      PhaseCost& cost = profile_->phases[i];
      cost.seconds += static_cast<double>(lane.total[i] - lane.waiting[i]) * 1e-9 / used;
      cost.waiting_seconds += static_cast<double>(lane.waiting[i]) * 1e-9 / used;
    }
    lane = {};
  }
}

}  // namespace manyhead
