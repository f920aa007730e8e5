#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "manyhead/export.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// The parts of a step of the model, in the order in which they first run.
enum class StepPhase : std::uint8_t {
  kEmbedding,        ///< lookup in the table, the first norm, the angles of rotary positions
  kQueryKeyValue,    ///< the three projections of queries, keys and values
  kRotaryAndWrite,   ///< norms and rotation of queries and keys; the new keys and values stored
  kAttention,        ///< attention over the cache
  kAttentionOutput,  ///< the projection of attention's output
  kNorms,            ///< the residual stream: additions and norms
  kGateUp,           ///< the two projections before the activation
  kActivation,       ///< the activation and its product with up
  kDown,             ///< the projection after the activation
  kHead,             ///< the logits
};
/// The number of phases in StepPhase.
inline constexpr std::size_t kNumStepPhases = 10;

/// Returns e.g. "query/key/value" or "attention".
const char* StepPhaseName(StepPhase phase) noexcept;

/// The products that matrices of one weight type use in one phase. They follow from type, storage,
/// MathMode, instruction set and role, never from the number of tokens; see RowRole.
struct ProductPath {
  StepPhase phase = StepPhase::kHead;  ///< phase that the matrices belong to
  WeightType type = WeightType::kF32;  ///< type in which they are stored
  std::int64_t matrices = 0;           ///< number of such matrices
  std::string decode;   ///< products of decode rows and of all logits, e.g. "packed int8 avx512"
  std::string prefill;  ///< products of prompts, e.g. "tiles bf16 amx"
};

/// The cost of one phase, summed over layers and steps.
struct PhaseCost {
  double seconds = 0;  ///< time at work; mean of the threads
  /// Time at barriers, waiting for slower threads; mean of the threads.
  double waiting_seconds = 0;
  std::int64_t bytes = 0;  ///< bytes of weights, keys and values that each step reads at least once
  std::int64_t flops = 0;  ///< operations of products with weights, keys and values
};

/// The cost of a session's steps by phase; see Session::SetProfile.
struct StepProfile {
  std::array<PhaseCost, kNumStepPhases> phases{};  ///< indexed by StepPhase
  std::int64_t steps = 0;                          ///< steps, of any number of tokens
  std::int64_t tokens = 0;                         ///< tokens of all steps

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
