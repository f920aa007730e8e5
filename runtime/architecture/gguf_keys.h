#pragma once

#include <cstdint>
#include <span>
#include <string_view>

/// Lists the metadata keys of a GGUF file that describe its model: every key that loaders of these
/// families know is used, harmless or refused. The names omit the architecture that precedes them
/// ("llama.block_count"). Other keys belong to other families; the tensors of those have no place
/// here and are refused by name.

namespace manyhead::gguf_keys {

inline constexpr std::string_view kBlockCount = "block_count";
inline constexpr std::string_view kContextLength = "context_length";
inline constexpr std::string_view kEmbeddingLength = "embedding_length";
inline constexpr std::string_view kFeedForwardLength = "feed_forward_length";
inline constexpr std::string_view kHeadCount = "attention.head_count";
inline constexpr std::string_view kHeadCountKv = "attention.head_count_kv";
inline constexpr std::string_view kKeyLength = "attention.key_length";
inline constexpr std::string_view kValueLength = "attention.value_length";
inline constexpr std::string_view kRmsEpsilon = "attention.layer_norm_rms_epsilon";
inline constexpr std::string_view kLayerEpsilon = "attention.layer_norm_epsilon";
inline constexpr std::string_view kAttentionScale = "attention.scale";
inline constexpr std::string_view kCausal = "attention.causal";
inline constexpr std::string_view kWindow = "attention.sliding_window";
inline constexpr std::string_view kWindowPattern = "attention.sliding_window_pattern";
inline constexpr std::string_view kAttentionSoftcap = "attn_logit_softcapping";
inline constexpr std::string_view kLogitSoftcap = "final_logit_softcapping";
inline constexpr std::string_view kExpertCount = "expert_count";
inline constexpr std::string_view kRopeDimensions = "rope.dimension_count";
inline constexpr std::string_view kRopeBase = "rope.freq_base";
inline constexpr std::string_view kRopeLocalBase = "rope.freq_base_swa";
inline constexpr std::string_view kRopeScaleLinear = "rope.scale_linear";
inline constexpr std::string_view kRopeScaling = "rope.scaling.type";
inline constexpr std::string_view kRopeFactor = "rope.scaling.factor";
inline constexpr std::string_view kRopeOriginalContext = "rope.scaling.original_context_length";
inline constexpr std::string_view kRopeAttentionFactor = "rope.scaling.attn_factor";
inline constexpr std::string_view kRopeBetaFast = "rope.scaling.yarn_beta_fast";
inline constexpr std::string_view kRopeBetaSlow = "rope.scaling.yarn_beta_slow";

/// Returns the keys that the config is read from.
std::span<const std::string_view> Used() noexcept;

struct Harmless {
  std::string_view key;
  std::string_view why;  ///< reason why it changes no result
};
std::span<const Harmless> HarmlessKeys() noexcept;

/// A key that changes results in a way that this library does not compute. A file may still state
/// that the feature is off.
struct Refused {
  std::string_view key;
  double off = 0;  ///< the number, or truth value, that means that the feature is off
  double also_off = 0;
};
std::span<const Refused> RefusedKeys() noexcept;

}  // namespace manyhead::gguf_keys
