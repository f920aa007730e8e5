#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "manyhead/export.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// The parts of a step of the model, in the order they first run.
enum class StepPhase : std::uint8_t {
  kEmbedding,        ///< rows of the table, the first norm, the angles of rotary positions
  kQueryKeyValue,    ///< the three projections
  kRotaryAndWrite,   ///< norms and rotation of queries and keys; the new keys and values stored
  kAttention,        ///< over the cache
  kAttentionOutput,  ///< projection
  kNorms,            ///< the residual stream: additions and norms
  kGateUp,           ///< the two projections
  kActivation,       ///< and its product with up
  kDown,             ///< projection
  kHead,             ///< logits
};
/// How many StepPhase has.
inline constexpr std::size_t kNumStepPhases = 10;

/// "query/key/value", "attention".
const char* StepPhaseName(StepPhase phase) noexcept;

/// The products that matrices of one weight type take in one phase. They follow from type, storage,
/// MathMode, instruction set and role, never from the number of tokens; see RowRole.
struct ProductPath {
  StepPhase phase = StepPhase::kHead;  ///< whose matrices
  WeightType type = WeightType::kF32;  ///< as they are stored
  std::int64_t matrices = 0;           ///< how many there are
  std::string decode;   ///< of tokens that decode, and of all logits, e.g. "packed int8 avx512"
  std::string prefill;  ///< of prompts, e.g. "tiles bf16 amx"
};

/// What one phase cost, summed over layers and steps.
struct PhaseCost {
  double seconds = 0;          ///< at work; mean of the threads
  double waiting_seconds = 0;  ///< at barriers, for slower threads; mean of the threads
  std::int64_t bytes = 0;      ///< of weights, keys and values that each step reads at least once
  std::int64_t flops = 0;      ///< of products with weights, keys and values
};

/// Where the time of a session's steps went; see Session::SetProfile.
struct StepProfile {
  std::array<PhaseCost, kNumStepPhases> phases{};  ///< by StepPhase
  std::int64_t steps = 0;                          ///< of any number of tokens
  std::int64_t tokens = 0;                         ///< of all steps

  /// The cost of `phase`.
  const PhaseCost& operator[](StepPhase phase) const noexcept {
    return phases[static_cast<std::size_t>(phase)];
  }
  /// The cost of `phase`.
  PhaseCost& operator[](StepPhase phase) noexcept {
    return phases[static_cast<std::size_t>(phase)];
  }
};

}  // namespace manyhead
