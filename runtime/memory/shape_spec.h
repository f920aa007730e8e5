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

/// The limits exceed any real model; they keep sizes computed from these numbers far from overflow.
inline constexpr std::int64_t kMaxShapeDim = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxShapeHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxShapeHeadDim = 1024;  // limit of the attention kernels
inline constexpr std::int64_t kMaxShapeLayers = 4096;
inline constexpr std::int64_t kMaxShapeVocab = INT32_MAX;
inline constexpr std::int64_t kMaxShapeContext = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxShapeExperts = std::int64_t{1} << 16;

/// The names of the numbers in messages and in config.json.
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

/// ShapeParams with further parts that only some families have.
struct ShapeSpec {
  ShapeParams params;
  ShapeNames names;
  const Architecture* architecture = nullptr;  ///< null: a decoder of no family
  std::string model_type = "decoder";          ///< name of the family
  std::vector<std::int64_t> windows;           ///< [layer]; empty: the window of `params`
  bool ffn_bias = false;
  std::int64_t num_experts = 0;  ///< 0 = one feed-forward block, no router
  std::int64_t experts_per_token = 0;
  std::optional<Quantization> quantization;
};

/// Builds the shape.
/// Errors   kInvalidArgument, naming what is out of range, or two values that contradict each
///          other.
Result<ModelShape> BuildShape(const ShapeSpec& spec);

}  // namespace manyhead
