#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/memory.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/memory/quantization.h"

namespace manyhead {

/// Above any real model; keeps sizes computed from these numbers far from overflow.
inline constexpr std::int64_t kMaxShapeDim = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxShapeHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxShapeHeadDim = 1024;  // of the attention kernels
inline constexpr std::int64_t kMaxShapeLayers = 4096;
inline constexpr std::int64_t kMaxShapeVocab = INT32_MAX;
inline constexpr std::int64_t kMaxShapeContext = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxShapeExperts = std::int64_t{1} << 16;

/// What a message, and config.json, call the numbers.
struct ShapeNames {
  const char* where = "MakeModelShape";  ///< begins the message
  const char* d_model = "d_model";
  const char* num_heads = "num_heads";
  const char* num_kv_heads = "num_kv_heads";
  const char* head_dim = "head_dim";
  const char* layers = "layers";
  const char* ffn_dim = "ffn_dim";
  const char* vocab_size = "vocab_size";
  const char* context = "context_length";
};

/// ShapeParams, and what only some families have.
struct ShapeSpec {
  ShapeParams params;
  ShapeNames names;
  const Architecture* architecture = nullptr;  ///< null: a decoder of no family
  std::string model_type = "decoder";          ///< what the family is called
  std::vector<std::int64_t> windows;           ///< [layer]; empty: as params say
  bool ffn_bias = false;
  std::int64_t num_experts = 0;  ///< 0 = one feed-forward block, no router
  std::int64_t experts_per_token = 0;
  std::optional<Quantization> quantization;
};

/// Errors   kInvalidArgument, naming what is out of range, or two values that do not go together.
Result<ModelShape> BuildShape(const ShapeSpec& spec);

}  // namespace manyhead
