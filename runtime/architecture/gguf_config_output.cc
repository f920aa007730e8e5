#include <algorithm>
#include <string>
#include <vector>

#include "runtime/architecture/gguf_config.h"
#include "runtime/architecture/gguf_keys.h"

namespace manyhead {

namespace keys = gguf_keys;

void WriteGgufConfig(const ModelConfig& config, const Architecture& architecture,
                     GgufOutput& output) {
  using Counts = std::vector<std::uint32_t>;
  const auto name = [&](std::string_view key) {
    return std::string(architecture.gguf).append(".").append(key);
  };
  const auto count = [&](std::string_view key, std::int64_t value) {
    output.AddKey(name(key), static_cast<std::uint32_t>(value));
  };
  Counts heads, kv_heads, ffn, local;
  std::int64_t window = 0;
  for (const LayerConfig& layer : config.layers) {
    heads.push_back(static_cast<std::uint32_t>(layer.num_heads));
    kv_heads.push_back(static_cast<std::uint32_t>(layer.num_kv_heads));
    ffn.push_back(static_cast<std::uint32_t>(layer.ffn_dim));
    local.push_back(layer.window > 0 ? 1 : 0);
    window = std::max(window, layer.window);
  }
  const LayerConfig& first = config.layers.front();
  output.AddKey("general.architecture", architecture.gguf);
  output.AddKey("general.name", config.name);
  count(keys::kBlockCount, std::ssize(config.layers));
  count(keys::kEmbeddingLength, config.d_model);
  count(keys::kContextLength, std::min<std::int64_t>(config.context_length, INT32_MAX));
  output.AddKey(name(keys::kHeadCount), std::span<const std::uint32_t>(heads));
  output.AddKey(name(keys::kHeadCountKv), std::span<const std::uint32_t>(kv_heads));
  output.AddKey(name(keys::kFeedForwardLength), std::span<const std::uint32_t>(ffn));
  count(keys::kKeyLength, first.head_dim);
  count(keys::kValueLength, first.head_dim_v);
  output.AddKey(name(config.norm == NormKind::kRms ? keys::kRmsEpsilon : keys::kLayerEpsilon),
                config.norm_eps);
  output.AddKey(name(keys::kAttentionSoftcap), config.attention_softcap);
  output.AddKey(name(keys::kLogitSoftcap), config.logit_softcap);
  if (config.softmax_scale != 0) output.AddKey(name(keys::kAttentionScale), config.softmax_scale);
  if (config.positions == PositionKind::kRotary)
    count(keys::kRopeDimensions, std::max<std::int64_t>(2, first.head_dim / 2 * 2));
  count(keys::kWindow, window);
  // A list of a single layer would be read as a number, which has another meaning.
  if (config.layers.size() > 1)
    output.AddKey(name(keys::kWindowPattern), std::span<const std::uint32_t>(local));
}

}  // namespace manyhead
