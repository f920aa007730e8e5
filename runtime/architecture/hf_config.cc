#include "runtime/architecture/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/architecture/config_reader.h"
#include "runtime/architecture/hf_keys.h"
#include "runtime/architecture/hf_rope.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

/// The names that a family's config.json has for the numbers of its shape.
struct SizeKeys {
  std::string_view d_model, layers, heads, ffn, context, epsilon;
};
constexpr SizeKeys kSizeKeys = {
    "hidden_size",       "num_hidden_layers",       "num_attention_heads",
    "intermediate_size", "max_position_embeddings", "rms_norm_eps"};
constexpr SizeKeys kGpt2Keys = {"n_embd",  "n_layer",     "n_head",
                                "n_inner", "n_positions", "layer_norm_epsilon"};
constexpr SizeKeys kNeoxKeys = {
    "hidden_size",       "num_hidden_layers",       "num_attention_heads",
    "intermediate_size", "max_position_embeddings", "layer_norm_eps"};

const SizeKeys& KeysOf(const Architecture& architecture) {
  if (architecture.names == HfNames::kGpt2) return kGpt2Keys;
  return architecture.names == HfNames::kNeox ? kNeoxKeys : kSizeKeys;
}

/// Models that read pictures too keep the decoder's part in an object of its own.
std::string PrefixOf(const Metadata& metadata) {
  const bool nested = metadata.Count("hidden_size") == 0 && metadata.Count("text_config") > 0;
  return nested ? "text_config" : "";
}

Status Unsupported(const ConfigReader& reader, std::string_view key, const std::string& value,
                   std::string_view expected) {
  return MakeError(StatusCode::kUnsupported, "config.json: ", reader.Name(key), " = ",
                   Printable(value), "; expected ", expected);
}

std::string ValueOf(const Metadata& metadata, std::string_view key) {
  for (const Metadata::Entry& entry : metadata.entries())
    if (entry.key == key) return entry.value;
  return "set";
}

/// Returns an error for a folder that turns on something that this library does not compute.
Status CheckRefused(const ConfigReader& reader, const Metadata& metadata,
                    const Architecture& architecture) {
  const auto is_on = [&](std::string_view key) {
    const std::string name = reader.Name(key);
    if (metadata.Count(name) == 0) return false;
    if (const auto flag = metadata.GetBool(name); flag.ok()) return **flag;
    if (const auto number = metadata.GetFloat(name); number.ok()) return **number != 0;
    return true;
  };
  for (const std::string_view key : hf_keys::RefusedKeys())
    if (is_on(key))
      return Unsupported(reader, key, ValueOf(metadata, key),
                         "a model without it: this library does not compute what it asks for");
  for (const std::string_view key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (architecture.experts != ExpertKeys::kNone || is_on(key))
      return Unsupported(reader, key, ValueOf(metadata, key), "a model without experts");
  for (const std::string_view key : {"quantization_config", "scale_attn_by_inverse_layer_idx"})
    if (is_on(key))
      return Unsupported(reader, key, ValueOf(metadata, key),
                         "F32, F16 or BF16 weights and plain attention");
  return {};
}

Status ReadActivation(ConfigReader& reader, ModelConfig& config) {
  for (const std::string_view key : {"hidden_activation", "hidden_act", "activation_function"}) {
    if (!reader.Has(key)) continue;
    const std::string name = reader.String(reader.Name(key));
    if (name == "silu" || name == "swish") {
      config.activation = Activation::kSilu;
    } else if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
      config.activation = Activation::kGeluTanh;
    } else if (name == "gelu") {
      config.activation = Activation::kGelu;
    } else if (reader.ok()) {
      return Unsupported(reader, key, name, "silu, gelu, gelu_new or gelu_pytorch_tanh");
    }
    return reader.status();
  }
  return {};
}

/// Returns the default of the config class; -1, which stands for a required key, without one.
std::int64_t Default(std::int64_t value) { return value > 0 ? value : -1; }

Status ReadLayers(ConfigReader& reader, const Architecture& architecture, const SizeKeys& keys,
                  ModelConfig& config) {
  const HfDefaults& defaults = architecture.hf_defaults;
  const std::int64_t layers = reader.Int(keys.layers, 1, kMaxLayers, Default(defaults.layers));
  LayerConfig layer;
  layer.num_heads = reader.Int(keys.heads, 1, kMaxDim, Default(defaults.heads));
  const std::int64_t kv_heads = defaults.kv_heads > 0 ? defaults.kv_heads : layer.num_heads;
  layer.num_kv_heads = reader.Int("num_key_value_heads", 1, kMaxDim, kv_heads);
  const std::int64_t head_dim =
      architecture.hf_head_dim > 0 ? architecture.hf_head_dim : config.d_model / layer.num_heads;
  layer.head_dim = reader.Int("head_dim", 1, kMaxHeadDim, head_dim);
  reader.InRange("hidden_size / num_attention_heads", layer.head_dim, 1, kMaxHeadDim);
  layer.head_dim_v = layer.head_dim;
  const std::int64_t ffn = defaults.ffn > 0 ? defaults.ffn : 4 * config.d_model;
  layer.ffn_dim = reader.Int(keys.ffn, 1, kMaxDim, ffn);
  if (!reader.ok()) return reader.status();
  if (layer.num_heads % layer.num_kv_heads != 0)
    reader.Fail(Concat(reader.Name(keys.heads), " = ", layer.num_heads,
                       " is not a multiple of num_key_value_heads = ", layer.num_kv_heads));
  config.layers.assign(static_cast<std::size_t>(layers), layer);
  return reader.status();
}

/// Reads which layers "layer_types" gives a window.
Status ReadLayerTypes(const ConfigReader& reader, const Metadata& metadata, std::int64_t window,
                      ModelConfig& config) {
  const auto types = metadata.GetStrings(reader.Name("layer_types"));
  if (!types.ok()) return types.status();
  if (std::ssize(**types) != std::ssize(config.layers))
    return IoError("config.json", "layer_types has ", (*types)->size(),
                   " values for num_hidden_layers = ", config.layers.size());
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const std::string_view type = (**types)[i];
    if (type != "full_attention" && type != "sliding_attention")
      return Unsupported(reader, "layer_types", std::string(type),
                         "full_attention or sliding_attention");
    config.layers[i].window = type == "sliding_attention" ? window : 0;
  }
  return {};
}

Status ReadWindows(ConfigReader& reader, const Metadata& metadata, const Architecture& architecture,
                   ModelConfig& config) {
  const WindowRule rule = architecture.hf_windows;
  if (rule == WindowRule::kNone) return {};
  // A null is a model without windows; only config classes of nested objects leave defaults out.
  const bool nested = reader.Name("x") != "x";
  const std::int64_t window =
      reader.Int("sliding_window", 0, kMaxContext, nested ? architecture.hf_window : 0);
  if (reader.Has("layer_types")) {
    if (!reader.ok()) return reader.status();
    return ReadLayerTypes(reader, metadata, window, config);
  }
  const std::string_view pattern_key =
      reader.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::int64_t pattern = reader.Int(pattern_key, 1, kMaxLayers,
                                          std::max<std::int64_t>(1, architecture.window_pattern));
  constexpr std::int64_t kFirstOfQwen = 28;  // default of the config class
  const std::int64_t first = reader.Int("max_window_layers", 0, INT32_MAX, kFirstOfQwen);
  const bool use = reader.Bool("use_sliding_window", false);
  for (std::int64_t i = 0; i < std::ssize(config.layers); ++i) {
    const bool local = rule == WindowRule::kAll ||
                       (rule == WindowRule::kSwitched && use && i >= first) ||
                       (rule == WindowRule::kPattern && (i + 1) % pattern != 0);
    config.layers[static_cast<std::size_t>(i)].window = local ? window : 0;
  }
  return reader.status();
}

/// Reads what changes the order of a layer's parts.
void ReadResidual(ConfigReader& reader, const Architecture& architecture, ModelConfig& config) {
  const bool parallel = reader.Bool("use_parallel_residual", architecture.parallel);
  config.residual = parallel ? ResidualKind::kParallel : ResidualKind::kSequential;
}

void ReadBiases(ConfigReader& reader, const Architecture& architecture, ModelConfig& config) {
  const bool attention = reader.Bool("attention_bias", architecture.biases);
  config.qkv_bias = architecture.hf_qkv_bias || attention;
  config.output_bias = attention && !architecture.hf_qkv_bias;
  config.ffn_bias = reader.Bool("mlp_bias", architecture.biases);
}

void ReadScales(ConfigReader& reader, const Architecture& architecture, ModelConfig& config) {
  if (architecture.scaled_embedding)
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  config.attention_softcap = 0;
  config.logit_softcap = 0;
  const auto cap = [&](std::string_view key, float absent) {
    return static_cast<float>(reader.FloatOrOff(key, 0, static_cast<double>(absent)));
  };
  if (architecture.hf_query_scalar > 0) {
    config.attention_softcap = cap("attn_logit_softcapping", 0);
    config.logit_softcap = cap("final_logit_softcapping", 0);
    config.softmax_scale = static_cast<float>(
        1 / std::sqrt(reader.Float("query_pre_attn_scalar", 0, architecture.hf_query_scalar)));
  }
  if (!reader.Bool("scale_attn_weights", true)) config.softmax_scale = 1;
}

std::string FolderName(const std::string& path) {
  std::filesystem::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

}  // namespace

Result<const Architecture*> ReadHfArchitecture(const Metadata& metadata) {
  const auto type = metadata.GetString("model_type");
  if (!type.ok()) return type.status();
  if (!*type) return IoError("config.json", "model_type is missing");
  const Architecture* const found = FindHfArchitecture(**type);
  if (found == nullptr)
    return MakeError(StatusCode::kUnsupported, "config.json: model_type = ", Printable(**type),
                     "; expected one of ", HfArchitectureNames());
  return found;
}

Result<ModelConfig> ReadHfConfig(const Checkpoint& file, const Architecture& architecture) {
  const Metadata& metadata = file.config();
  ConfigReader reader(metadata, PrefixOf(metadata));
  const SizeKeys& keys = KeysOf(architecture);
  const HfDefaults& defaults = architecture.hf_defaults;
  ModelConfig config = ConfigOf(architecture);
  config.name = FolderName(file.path());
  if (Status status = CheckRefused(reader, metadata, architecture); !status.ok()) return status;
  config.d_model = reader.Int(keys.d_model, 1, kMaxDim, Default(defaults.d_model));
  config.vocab_size = reader.Int("vocab_size", 1, kMaxDim, Default(defaults.vocab));
  config.context_length = reader.Int(keys.context, 1, kMaxContext, Default(defaults.context));
  config.norm_eps = static_cast<float>(reader.Float(keys.epsilon, 0, architecture.hf_norm_eps));
  config.tied_embeddings = reader.Bool("tie_word_embeddings", architecture.hf_tied);
  if (!reader.ok()) return reader.status();
  if (Status status = ReadActivation(reader, config); !status.ok()) return status;
  if (Status status = ReadLayers(reader, architecture, keys, config); !status.ok()) return status;
  ReadResidual(reader, architecture, config);
  ReadBiases(reader, architecture, config);
  ReadScales(reader, architecture, config);
  if (config.positions == PositionKind::kLearned) config.num_positions = config.context_length;
  if (Status status = ReadWindows(reader, metadata, architecture, config); !status.ok())
    return status;
  if (Status status = ReadHfRopes(reader, architecture, config); !status.ok()) return status;
  if (!reader.ok()) return reader.status();
  return config;
}

}  // namespace manyhead
