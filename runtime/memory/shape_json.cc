#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/architecture/hf_keys.h"
#include "runtime/memory/shape_spec.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

constexpr ShapeNames kNames = {.where = "config.json",
                               .d_model = "hidden_size",
                               .num_heads = "num_attention_heads",
                               .num_kv_heads = "num_key_value_heads",
                               .head_dim = "head_dim",
                               .layers = "num_hidden_layers",
                               .ffn_dim = "intermediate_size",
                               .vocab_size = "vocab_size",
                               .context = "max_position_embeddings"};

constexpr ShapeNames kGpt2Names = {.where = "config.json",
                                   .d_model = "n_embd",
                                   .num_heads = "n_head",
                                   .num_kv_heads = "num_key_value_heads",
                                   .head_dim = "head_dim",
                                   .layers = "n_layer",
                                   .ffn_dim = "n_inner",
                                   .vocab_size = "vocab_size",
                                   .context = "n_positions"};

const ShapeNames& NamesOf(const Architecture& architecture) {
  return architecture.names == HfNames::kGpt2 ? kGpt2Names : kNames;
}

/// Reads the keys of a config and records the first error.
class Reader {
 public:
  /// `outer` is the object that holds `json` as one of several parts, with some values for all of
  /// them; null: there is none.
  Reader(const Json& json, const Json* outer) : json_(json), outer_(outer) {}

  /// Returns true where the config class fills in absent values: see HfDefaults.
  bool nested() const { return outer_ != nullptr; }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  /// Returns true where the key is present and not null.
  bool Has(const char* key) const { return !(*this)[key].is_null(); }

  /// Returns the whole number at `key` within [low, high]; `fallback` when absent, unless it is
  /// negative.
  std::int64_t Int(const char* key, std::int64_t low, std::int64_t high, std::int64_t fallback) {
    if (!Has(key)) {
      if (fallback < 0) Fail(key, " is missing");
      return fallback;
    }
    const Json& value = (*this)[key];
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                          : value.is_number_integer();
    if (fits && value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high)
      return value.get<std::int64_t>();
    Fail(key, " = ", Show(value), "; expected a whole number from ", low, " to ", high);
    return low;
  }

  bool Bool(const char* key, bool fallback) {
    if (!Has(key)) return fallback;
    if (!(*this)[key].is_boolean())
      Fail(key, " = ", Show((*this)[key]), "; expected true or false");
    return ok() && (*this)[key].get<bool>();
  }

  std::string String(const char* key) {
    if (!Has(key)) return {};
    if (!(*this)[key].is_string()) Fail(key, " = ", Show((*this)[key]), "; expected a string");
    return ok() ? (*this)[key].get<std::string>() : std::string();
  }

  /// Returns the value at `key`; null when it is absent.
  const Json& operator[](const char* key) const {
    static const Json null;
    if (json_.contains(key)) return json_[key];
    const bool shared = std::any_of(std::begin(kSharedKeys), std::end(kSharedKeys),
                                    [&](const char* one) { return std::strcmp(one, key) == 0; });
    return shared && outer_ != nullptr && outer_->contains(key) ? (*outer_)[key] : null;
  }

  template <class... Parts>
  void Fail(const Parts&... parts) {
    Fail(StatusCode::kInvalidArgument, parts...);
  }
  template <class... Parts>
  void Fail(StatusCode code, const Parts&... parts) {
    if (!ok()) return;
    status_ = MakeError(code, kNames.where, ": ", parts...);
  }

  void Fail(const Status& status) {
    if (ok()) status_ = status;
  }

  static std::string Show(const Json& value) {
    constexpr std::size_t kMost = 60;
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

 private:
  // The keys that a config with several parts states for all of them.
  static constexpr const char* kSharedKeys[] = {"dtype", "torch_dtype", "tie_word_embeddings",
                                                "quantization_config"};

  const Json& json_;
  const Json* outer_;
  Status status_;
};

const Architecture* FindArchitecture(Reader& reader) {
  const std::string type = reader.String("model_type");
  if (reader.ok() && type.empty()) reader.Fail("model_type is missing");
  const Architecture* const found = FindHfArchitecture(type);
  if (found == nullptr)
    reader.Fail(StatusCode::kUnsupported, "model_type = ", Reader::Show(type), "; expected one of ",
                HfArchitectureNames());
  return found;
}

/// Returns an error for keys that change a model's tensors or its attention in a way that is not
/// planned.
void CheckRefused(Reader& reader) {
  for (const std::string_view key : hf_keys::RefusedKeys()) {
    const Json& value = reader[std::string(key).c_str()];
    const bool off = value.empty() || (value.is_boolean() && !value.get<bool>()) ||
                     (value.is_number() && value.get<double>() == 0);
    if (!off)
      reader.Fail(StatusCode::kUnsupported, key, " = ", Reader::Show(value),
                  "; this library does not plan what it asks for");
  }
}

WeightType ReadType(Reader& reader) {
  const char* const key = reader.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string type = reader.String(key);
  if (type.empty() || type == "float16") return WeightType::kF16;
  if (type == "bfloat16") return WeightType::kBf16;
  if (type == "float32") return WeightType::kF32;
  reader.Fail(key, " = ", Reader::Show(type), "; expected float16, bfloat16 or float32");
  return WeightType::kF16;
}

/// Reads the storage of matrices that a quantization_config states.
std::optional<Quantization> ReadQuantization(Reader& reader) {
  if (!reader.Has("quantization_config")) return std::nullopt;
  const Json& json = reader["quantization_config"];
  Reader config(json, nullptr);
  Quantization made;
  if (json.is_object()) made.method = config.String("quant_method");
  constexpr std::int64_t kMostBits = 16, kHalf = 16, kFloat = 32;
  if (made.method == "fp8" || made.method == "fbgemm_fp8") {
    made.group_bits = kFloat;
  } else if (made.method == "mxfp4") {
    made = {.method = "mxfp4", .bits = 4, .group = 32, .group_bits = 8, .experts_only = true};
  } else if (made.method == "gptq" || made.method == "awq") {
    made.bits = config.Int("bits", 1, kMostBits, -1);
    made.group = config.Int("group_size", 1, kMaxShapeDim, 128);
    made.group_bits = kHalf + made.bits;  // a scale and a zero point
  } else if (made.method == "bitsandbytes") {
    const bool four = config.Bool("load_in_4bit", false);
    made.bits = four ? 4 : 8;
    made.group = four ? 64 : 1 << 12;
    made.group_bits = kFloat;
  } else {
    reader.Fail(StatusCode::kUnsupported, "quantization_config = ", Reader::Show(json),
                "; expected a quant_method of fp8, fbgemm_fp8, mxfp4, gptq, awq or bitsandbytes, "
                "or a type for all matrices");
  }
  if (!config.ok()) reader.Fail(config.status());
  return made;
}

/// Reads the windows that "layer_types" lists.
std::vector<std::int64_t> ReadLayerTypes(Reader& reader, std::int64_t layers, std::int64_t window) {
  const Json& types = reader["layer_types"];
  std::vector<std::int64_t> windows;
  if (!types.is_array()) {
    reader.Fail("layer_types = ", Reader::Show(types), "; expected a list");
    return windows;
  }
  if (static_cast<std::int64_t>(types.size()) != layers)
    reader.Fail("layer_types has ", types.size(), " entries; num_hidden_layers = ", layers);
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      reader.Fail("layer_types holds ", Reader::Show(type),
                  "; expected \"full_attention\" or \"sliding_attention\"");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  return windows;
}

std::vector<std::int64_t> ReadWindows(Reader& reader, const Architecture& architecture,
                                      std::int64_t layers) {
  const std::int64_t window = reader.Int("sliding_window", 0, kMaxShapeContext,
                                         reader.nested() ? architecture.hf_window : 0);
  if (reader.Has("layer_types")) return ReadLayerTypes(reader, layers, window);
  const char* const pattern_key =
      reader.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::int64_t pattern = reader.Int(pattern_key, 1, kMaxShapeLayers,
                                          std::max<std::int64_t>(1, architecture.window_pattern));
  const std::int64_t first = reader.Int("max_window_layers", 0, INT32_MAX, layers);
  const bool use = reader.Bool("use_sliding_window", false);
  const WindowRule rule = architecture.hf_windows;
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool local = rule == WindowRule::kAll ||
                       (rule == WindowRule::kSwitched && use && i >= first) ||
                       (rule == WindowRule::kPattern && (i + 1) % pattern != 0);
    windows.push_back(local ? window : 0);
  }
  return windows;
}

void ReadExperts(Reader& reader, const Architecture& architecture, ShapeSpec& spec) {
  if (architecture.experts == ExpertKeys::kNone) return;
  const bool moe = architecture.experts == ExpertKeys::kMoe;
  spec.num_experts = reader.Int(moe ? "num_experts" : "num_local_experts", 1, kMaxShapeExperts, -1);
  spec.experts_per_token = reader.Int("num_experts_per_tok", 1, spec.num_experts, -1);
  if (!moe) return;
  spec.params.ffn_dim = reader.Int("moe_intermediate_size", 1, kMaxShapeDim, -1);
  if (reader.Int("decoder_sparse_step", 1, kMaxShapeLayers, 1) != 1 ||
      (reader.Has("mlp_only_layers") && !reader["mlp_only_layers"].empty()))
    reader.Fail(StatusCode::kUnsupported,
                "decoder_sparse_step or mlp_only_layers leave layers without experts; expected "
                "experts in all");
}

/// Reads the sizes of the shape. A value that is absent and has no default is -1.
void ReadSizes(Reader& reader, const Architecture& architecture, ShapeSpec& spec) {
  const ShapeNames& names = spec.names;
  const HfDefaults defaults = reader.nested() ? architecture.hf_defaults : HfDefaults();
  const auto required = [](std::int64_t fallback) { return fallback > 0 ? fallback : -1; };
  const bool gpt2 = architecture.names == HfNames::kGpt2;
  ShapeParams& p = spec.params;
  p.d_model = reader.Int(names.d_model, 1, kMaxShapeDim, required(defaults.d_model));
  p.layers = reader.Int(names.layers, 1, kMaxShapeLayers, required(defaults.layers));
  p.num_heads = reader.Int(names.num_heads, 1, kMaxShapeHeads, required(defaults.heads));
  p.num_kv_heads = reader.Int(names.num_kv_heads, 1, kMaxShapeHeads, defaults.kv_heads);
  p.head_dim = reader.Int(names.head_dim, 1, kMaxShapeHeadDim, architecture.hf_head_dim);
  const std::int64_t ffn = gpt2                                       ? 4 * p.d_model
                           : architecture.experts == ExpertKeys::kMoe ? 0
                                                                      : required(defaults.ffn);
  p.ffn_dim = reader.Int(names.ffn_dim, 1, kMaxShapeDim, ffn);
  p.vocab_size = reader.Int(names.vocab_size, 1, kMaxShapeVocab, required(defaults.vocab));
  p.context_length = reader.Int(names.context, 1, kMaxShapeContext,
                                gpt2 ? required(defaults.context) : defaults.context);
}

ShapeSpec ReadSpec(Reader& reader, const Architecture& architecture) {
  ShapeSpec spec;
  spec.names = NamesOf(architecture);
  spec.architecture = &architecture;
  spec.model_type = reader.String("model_type");
  ReadSizes(reader, architecture, spec);
  ShapeParams& p = spec.params;
  p.tied_embeddings = reader.Bool("tie_word_embeddings", architecture.hf_tied);
  const bool bias = reader.Bool("attention_bias", architecture.sinks || architecture.biases);
  p.qkv_bias = architecture.hf_qkv_bias || bias;
  p.output_bias = bias && !architecture.hf_qkv_bias;
  p.qk_norm = architecture.qk_norm;
  p.post_norms = architecture.post_norms;
  spec.ffn_bias = reader.Bool("mlp_bias", architecture.sinks || architecture.biases);
  ReadExperts(reader, architecture, spec);
  CheckRefused(reader);
  if (reader.ok()) spec.windows = ReadWindows(reader, architecture, p.layers);
  return spec;
}

Result<ModelShape> ParseObject(const Json& json, const Json* outer,
                               std::optional<WeightType> weight_type) {
  Reader reader(json, outer);
  const Architecture* const architecture = FindArchitecture(reader);
  if (architecture == nullptr) return reader.status();
  ShapeSpec spec = ReadSpec(reader, *architecture);
  if (!weight_type) spec.quantization = ReadQuantization(reader);
  spec.params.weight_type = weight_type ? *weight_type : ReadType(reader);
  if (!reader.ok()) return reader.status();
  return BuildShape(spec);
}

}  // namespace

Result<ModelShape> ParseModelShape(std::string_view text, std::optional<WeightType> weight_type) {
  const Result<JsonTree> parsed = ParseJson(text, JsonKeys::kLastCounts);
  const std::string problem = !parsed.ok()                 ? parsed.status().message()
                              : parsed->root().is_object() ? std::string()
                                                           : Reader::Show(parsed->root());
  if (!problem.empty()) return InvalidArgument(kNames.where, problem, "; expected an object");
  const Json& json = parsed->root();
  // Models that also read images have the decoder's values in an object of their own.
  if (!json.contains(kNames.d_model) && json.contains("text_config") &&
      json["text_config"].is_object())
    return ParseObject(json["text_config"], &json, weight_type);
  return ParseObject(json, nullptr, weight_type);
}

}  // namespace manyhead
