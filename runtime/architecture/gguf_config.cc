#include "runtime/architecture/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "runtime/architecture/config_reader.h"
#include "runtime/architecture/gguf_keys.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

namespace keys = gguf_keys;

/// Returns an error for a file that turns on a feature which this library does not compute.
Status CheckRefused(const ConfigReader& reader, const Metadata& metadata) {
  for (const keys::Refused& refused : keys::RefusedKeys()) {
    const std::string key = reader.Name(refused.key);
    if (metadata.Count(key) == 0) continue;
    const auto is_off = [&](double value) {
      return value == 0 || value == refused.off || value == refused.also_off;
    };
    bool off = false;
    if (const auto flag = metadata.GetBool(key); flag.ok())
      off = is_off(**flag ? 1 : 0);
    else if (const auto numbers = metadata.GetFloats(key); numbers.ok())
      off = std::all_of((*numbers)->begin(), (*numbers)->end(),
                        [&](float value) { return is_off(static_cast<double>(value)); });
    if (!off)
      return Status(StatusCode::kUnsupported,
                    key + " is set; this library does not compute what it asks for");
  }
  if (const auto causal = metadata.GetBool(reader.Name(keys::kCausal)); !causal.ok())
    return causal.status();
  else if (!causal->value_or(true))
    return Status(StatusCode::kUnsupported,
                  reader.Name(keys::kCausal) +
                      " = false; expected true: attention in both directions is not supported");
  if (const auto experts = metadata.GetInt(reader.Name(keys::kExpertCount)); !experts.ok())
    return experts.status();
  else if (experts->value_or(0) > 0)
    return Status(StatusCode::kUnsupported,
                  reader.Name(keys::kExpertCount) + " is set; expected a model without experts");
  return {};
}

Status ReadRopeFactors(ConfigReader& reader, const Checkpoint& file, RopeConfig& rope) {
  const std::string name = GgufName(TensorRole::kRopeFactors, TensorPart::kValues);
  const StoredTensor* factors = file.FindTensor(name);
  if (factors == nullptr) return {};
  if (factors->type != WeightType::kF32 || factors->cols() != rope.rotary_dim / 2 ||
      factors->rows() != 1)
    reader.Fail(name + " has " + std::to_string(factors->cols() * factors->rows()) +
                " elements of " + WeightTypeName(factors->type) + "; expected " +
                std::to_string(rope.rotary_dim / 2) + " of F32");
  if (!reader.ok()) return reader.status();
  rope.scaling = RopeScaling::kFactors;
  const auto* values = reinterpret_cast<const float*>(factors->data);
  rope.factors.assign(values, values + rope.rotary_dim / 2);
  for (float factor : rope.factors)
    if (!(factor > 0) || !std::isfinite(factor))
      reader.Fail(name + " holds " + std::to_string(factor) + "; expected finite numbers above 0");
  return reader.status();
}

Result<RopeConfig> ReadRope(ConfigReader& reader, const Checkpoint& file,
                            const Architecture& architecture, std::int64_t head_dim,
                            std::int64_t context) {
  RopeConfig rope;
  rope.rotary_dim = reader.Int(keys::kRopeDimensions, 2, head_dim, head_dim);
  if (rope.rotary_dim % 2 != 0)
    reader.Fail(reader.Name(keys::kRopeDimensions) + " = " + std::to_string(rope.rotary_dim) +
                "; expected an even number");
  rope.interleaved = architecture.interleaved_rope;
  rope.base = reader.Float(keys::kRopeBase, 1, 10000);
  rope.factor =
      reader.FloatOrOff(keys::kRopeFactor, 1, reader.FloatOrOff(keys::kRopeScaleLinear, 1, 1));
  const std::string scaling = reader.String(reader.Name(keys::kRopeScaling));
  if (scaling == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.original_context = reader.Int(keys::kRopeOriginalContext, 0, kMaxContext, 0);
    if (rope.original_context == 0) rope.original_context = context;
    rope.attention_factor = reader.Float(keys::kRopeAttentionFactor, 0, 1);
    rope.beta_fast = reader.Float(keys::kRopeBetaFast, 0, 32);
    rope.beta_slow = reader.Float(keys::kRopeBetaSlow, 0, 1);
  } else if (scaling == "linear" || (scaling.empty() && rope.factor != 1)) {
    rope.scaling = RopeScaling::kLinear;
  } else if (!scaling.empty() && scaling != "none") {
    return Status(StatusCode::kUnsupported, reader.Name(keys::kRopeScaling) + " = " +
                                                Printable(scaling) +
                                                "; expected none, linear or yarn");
  }
  if (Status status = ReadRopeFactors(reader, file, rope); !status.ok()) return status;
  if (!reader.ok()) return reader.status();
  // This checks relations between the keys, e.g. that one is above another.
  if (const Result<Rope> created = Rope::Create(rope, head_dim, Isa::kScalar); !created.ok())
    return Status(StatusCode::kIoError, created.status().message());
  return rope;
}

/// Reads which layers have a window: all when the family has no rule, else all but every n-th.
/// Without a window no layer has one, and all layers rotate alike.
Status ReadWindows(ConfigReader& reader, const Metadata& metadata, const Architecture& architecture,
                   ModelConfig& config) {
  const std::int64_t window = reader.Int(keys::kWindow, 0, kMaxContext, architecture.window);
  const std::string key = reader.Name(keys::kWindowPattern);
  // A number n means that every n-th layer is full; a list says for each layer whether it has a
  // window.
  Result<std::optional<std::vector<std::int64_t>>> pattern = metadata.GetInts(key);
  if (!pattern.ok()) return pattern.status();
  const std::int64_t layers = static_cast<std::int64_t>(config.layers.size());
  std::int64_t every = architecture.window_pattern;
  const bool listed = *pattern && (*pattern)->size() != 1;
  if (*pattern && (*pattern)->size() == 1) every = (*pattern)->front();
  if (listed && static_cast<std::int64_t>((*pattern)->size()) != layers)
    reader.Fail(key + " has " + std::to_string((*pattern)->size()) +
                " values for block_count = " + std::to_string(layers));
  if (every < 0) reader.Fail(key + " = " + std::to_string(every) + "; expected at least 0");
  if (!reader.ok()) return reader.status();
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool local =
        window > 0 && (listed ? (**pattern)[i] != 0 : every == 0 || (i + 1) % every != 0);
    config.layers[i].window = local ? window : 0;
    config.layers[i].rope = local && architecture.local_rope ? 1 : 0;
  }
  return {};
}

Status ReadLayers(ConfigReader& reader, ModelConfig& config) {
  const std::int64_t layers = reader.Int(keys::kBlockCount, 1, kMaxLayers, -1);
  const auto heads = reader.PerLayer(keys::kHeadCount, layers, 1, kMaxDim, -1);
  if (!reader.ok()) return reader.status();
  const auto kv_heads = reader.PerLayer(keys::kHeadCountKv, layers, 1, kMaxDim, 0);
  const auto ffn = reader.PerLayer(keys::kFeedForwardLength, layers, 1, kMaxDim, -1);
  const std::int64_t head_dim =
      reader.Int(keys::kKeyLength, 1, kMaxHeadDim, config.d_model / heads[0]);
  reader.InRange("embedding_length / attention.head_count", head_dim, 1, kMaxHeadDim);
  const std::int64_t head_dim_v = reader.Int(keys::kValueLength, 1, kMaxHeadDim, head_dim);
  if (!reader.ok()) return reader.status();
  for (std::int64_t i = 0; i < layers; ++i) {
    LayerConfig layer;
    layer.num_heads = heads[i];
    layer.num_kv_heads = kv_heads[i] == 0 ? heads[i] : kv_heads[i];
    layer.head_dim = head_dim;
    layer.head_dim_v = head_dim_v;
    layer.ffn_dim = ffn[i];
    if (layer.num_heads % layer.num_kv_heads != 0)
      reader.Fail(
          reader.Name(keys::kHeadCount) + " = " + std::to_string(layer.num_heads) +
          " is not a multiple of attention.head_count_kv = " + std::to_string(layer.num_kv_heads));
    config.layers.push_back(layer);
  }
  return reader.status();
}

/// Reads the rotary embedding of all layers, and that of layers with a window where it differs.
Status ReadRopes(ConfigReader& reader, const Checkpoint& file, const Architecture& architecture,
                 ModelConfig& config) {
  if (config.positions != PositionKind::kRotary) return {};
  Result<RopeConfig> rope =
      ReadRope(reader, file, architecture, config.layers[0].head_dim, config.context_length);
  if (!rope.ok()) return rope.status();
  config.ropes.push_back(*std::move(rope));
  if (!architecture.local_rope) return {};
  // Layers with a window have a rotary base of their own and no scaling.
  RopeConfig local = config.ropes[0];
  local.scaling = RopeScaling::kNone;
  local.factor = 1;
  local.factors.clear();
  local.base = reader.Float(keys::kRopeLocalBase, 1, 10000);
  if (!reader.ok()) return reader.status();
  config.ropes.push_back(local);
  return {};
}

float ReadSoftmaxScale(ConfigReader& reader, const Architecture& architecture,
                       const ModelConfig& config) {
  const bool odd = architecture.odd_scale_layers > 0 &&
                   std::ssize(config.layers) == architecture.odd_scale_layers;
  const float scale = odd ? 1 / std::sqrt(static_cast<float>(config.d_model) /
                                          static_cast<float>(config.layers[0].num_heads))
                          : 0;
  return static_cast<float>(
      reader.FloatOrOff(keys::kAttentionScale, 0, static_cast<double>(scale)));
}

}  // namespace

Result<const Architecture*> ReadGgufArchitecture(const Metadata& metadata) {
  const auto count = metadata.GetInt("split.count"), number = metadata.GetInt("split.no");
  if (count.ok() && number.ok() && count->value_or(0) > 1)
    return Status(StatusCode::kUnsupported,
                  "split.count = " + std::to_string(**count) + ": the file is part " +
                      std::to_string(number->value_or(0) + 1) + " of " + std::to_string(**count) +
                      " of a split model; expected a model in one file");
  const auto architecture = metadata.GetString("general.architecture");
  if (!architecture.ok()) return architecture.status();
  if (!*architecture) return Status(StatusCode::kIoError, "general.architecture is missing");
  const Architecture* const found = FindGgufArchitecture(**architecture);
  if (found == nullptr)
    return Status(StatusCode::kUnsupported, "general.architecture = " + Printable(**architecture) +
                                                "; expected one of " + GgufArchitectureNames());
  return found;
}

Result<ModelConfig> ReadGgufConfig(const Checkpoint& file, const Architecture& architecture) {
  const Metadata& metadata = file.config();
  ConfigReader reader(metadata, architecture.gguf);
  ModelConfig config = ConfigOf(architecture);
  config.name = reader.String("general.name");
  config.d_model = reader.Int(keys::kEmbeddingLength, 1, kMaxDim, -1);
  config.context_length = reader.Int(keys::kContextLength, 1, kMaxContext, -1);
  config.norm_eps = static_cast<float>(
      reader.Float(config.norm == NormKind::kRms ? keys::kRmsEpsilon : keys::kLayerEpsilon, 0, -1));
  config.logit_softcap = static_cast<float>(
      reader.FloatOrOff(keys::kLogitSoftcap, 0, static_cast<double>(architecture.logit_softcap)));
  config.attention_softcap = static_cast<float>(reader.FloatOrOff(
      keys::kAttentionSoftcap, 0, static_cast<double>(architecture.attention_softcap)));
  if (Status status = reader.status(); !status.ok()) return status;
  if (Status status = CheckRefused(reader, metadata); !status.ok()) return status;
  if (Status status = ReadLayers(reader, config); !status.ok()) return status;
  if (architecture.scaled_embedding)
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  if (config.positions == PositionKind::kLearned) config.num_positions = config.context_length;
  config.softmax_scale = ReadSoftmaxScale(reader, architecture, config);
  if (Status status = ReadRopes(reader, file, architecture, config); !status.ok()) return status;
  if (Status status = ReadWindows(reader, metadata, architecture, config); !status.ok())
    return status;
  return config;
}

}  // namespace manyhead
