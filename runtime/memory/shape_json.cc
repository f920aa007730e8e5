#include <algorithm>
#include <string>
#include <utility>

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
                               .vocab_size = "vocab_size"};

/// Which layers of a family see only a window, where config.json has one but does not list them.
enum class WindowRule : std::uint8_t {
  kNone,      ///< the family has no windows
  kAll,       ///< every layer
  kSwitched,  ///< those from max_window_layers on, if use_sliding_window
  kPattern,   ///< all but every n-th, n in sliding_window_pattern or as the family has it
};

enum class Experts : std::uint8_t { kNone, kLocal, kMoe };

/// What config.json leaves to the code of a model family.
struct HfFamily {
  const char* name;
  bool tied = false;      ///< tie_word_embeddings where the key is absent
  bool qkv_bias = false;  ///< whatever attention_bias says
  bool qk_norm = false;
  bool post_norms = false;
  bool sinks = false;
  std::int64_t head_dim = 0;  ///< where the key is absent; 0 = hidden_size / heads
  WindowRule windows = WindowRule::kNone;
  std::int64_t pattern = 0;
  int num_ropes = 1;
  Experts experts = Experts::kNone;
};

constexpr HfFamily kHfFamilies[] = {
    {.name = "llama"},
    {.name = "mistral", .windows = WindowRule::kAll},
    {.name = "mixtral", .windows = WindowRule::kAll, .experts = Experts::kLocal},
    {.name = "qwen2", .qkv_bias = true, .windows = WindowRule::kSwitched},
    {.name = "qwen3", .qk_norm = true, .windows = WindowRule::kSwitched},
    {.name = "qwen3_moe",
     .qk_norm = true,
     .windows = WindowRule::kSwitched,
     .experts = Experts::kMoe},
    {.name = "gemma", .tied = true, .head_dim = 256},
    {.name = "gemma2",
     .tied = true,
     .post_norms = true,
     .head_dim = 256,
     .windows = WindowRule::kPattern,
     .pattern = 2},
    {.name = "gemma3_text",
     .tied = true,
     .qk_norm = true,
     .post_norms = true,
     .head_dim = 256,
     .windows = WindowRule::kPattern,
     .pattern = 6,
     .num_ropes = 2},
    {.name = "gemma3",
     .tied = true,
     .qk_norm = true,
     .post_norms = true,
     .head_dim = 256,
     .windows = WindowRule::kPattern,
     .pattern = 6,
     .num_ropes = 2},
    {.name = "phi3", .windows = WindowRule::kAll},
    {.name = "gpt_oss",
     .sinks = true,
     .head_dim = 64,
     .windows = WindowRule::kPattern,
     .pattern = 2,
     .experts = Experts::kLocal},
};

/// Reads the keys of a config and remembers the first thing that is wrong.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  /// Whether the key is there and not null.
  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  /// The whole number at `key` within [low, high]; `fallback` when absent, unless it is negative.
  std::int64_t Int(const char* key, std::int64_t low, std::int64_t high, std::int64_t fallback) {
    if (!Has(key)) {
      if (fallback < 0) Fail(key, " is missing");
      return fallback;
    }
    const Json& value = json_[key];
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
    if (!json_[key].is_boolean()) Fail(key, " = ", Show(json_[key]), "; expected true or false");
    return ok() && json_[key].get<bool>();
  }

  std::string String(const char* key) {
    if (!Has(key)) return {};
    if (!json_[key].is_string()) Fail(key, " = ", Show(json_[key]), "; expected a string");
    return ok() ? json_[key].get<std::string>() : std::string();
  }

  const Json& operator[](const char* key) const { return json_[key]; }

  template <class... Parts>
  void Fail(const Parts&... parts) {
    Fail(StatusCode::kInvalidArgument, parts...);
  }
  template <class... Parts>
  void Fail(StatusCode code, const Parts&... parts) {
    if (!ok()) return;
    status_ = MakeError(code, kNames.where, ": ", parts...);
  }

  static std::string Show(const Json& value) {
    constexpr std::size_t kMost = 60;
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

 private:
  const Json& json_;
  Status status_;
};

const HfFamily* FindFamily(Reader& reader) {
  const std::string type = reader.String("model_type");
  if (reader.ok() && type.empty()) reader.Fail("model_type is missing");
  std::string known;
  for (const HfFamily& family : kHfFamilies) {
    if (type == family.name) return &family;
    known.append(known.empty() ? "" : ", ").append(family.name);
  }
  reader.Fail(StatusCode::kUnsupported, "model_type = ", Reader::Show(type), "; expected one of ",
              known);
  return nullptr;
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

/// The windows that "layer_types" lists.
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

std::vector<std::int64_t> ReadWindows(Reader& reader, const HfFamily& family, std::int64_t layers) {
  const std::int64_t window = reader.Int("sliding_window", 0, kMaxShapeContext, 0);
  if (reader.Has("layer_types")) return ReadLayerTypes(reader, layers, window);
  const std::int64_t pattern = reader.Int("sliding_window_pattern", 1, kMaxShapeLayers,
                                          std::max<std::int64_t>(1, family.pattern));
  const std::int64_t first = reader.Int("max_window_layers", 0, INT32_MAX, layers);
  const bool use = reader.Bool("use_sliding_window", false);
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool local = family.windows == WindowRule::kAll ||
                       (family.windows == WindowRule::kSwitched && use && i >= first) ||
                       (family.windows == WindowRule::kPattern && (i + 1) % pattern != 0);
    windows.push_back(local ? window : 0);
  }
  return windows;
}

void ReadExperts(Reader& reader, const HfFamily& family, ShapeSpec& spec) {
  if (family.experts == Experts::kNone) return;
  const bool moe = family.experts == Experts::kMoe;
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

ShapeSpec ReadSpec(Reader& reader, const HfFamily& family) {
  ShapeSpec spec;
  spec.names = kNames;
  spec.architecture = family.name;
  spec.num_ropes = family.num_ropes;
  spec.sinks = family.sinks;
  ShapeParams& p = spec.params;
  p.d_model = reader.Int(kNames.d_model, 1, kMaxShapeDim, -1);
  p.layers = reader.Int(kNames.layers, 1, kMaxShapeLayers, -1);
  p.num_heads = reader.Int(kNames.num_heads, 1, kMaxShapeHeads, -1);
  p.num_kv_heads = reader.Int(kNames.num_kv_heads, 1, kMaxShapeHeads, 0);
  p.head_dim = reader.Int(kNames.head_dim, 1, kMaxShapeHeadDim, family.head_dim);
  p.ffn_dim = reader.Int(kNames.ffn_dim, 1, kMaxShapeDim, family.experts == Experts::kMoe ? 0 : -1);
  p.vocab_size = reader.Int(kNames.vocab_size, 1, kMaxShapeVocab, -1);
  p.context_length = reader.Int("max_position_embeddings", 1, kMaxShapeContext, 0);
  p.tied_embeddings = reader.Bool("tie_word_embeddings", family.tied);
  const bool bias = reader.Bool("attention_bias", family.sinks);
  p.qkv_bias = family.qkv_bias || bias;
  p.output_bias = bias && !family.qkv_bias;
  p.qk_norm = family.qk_norm;
  p.post_norms = family.post_norms;
  spec.ffn_bias = reader.Bool("mlp_bias", family.sinks);
  ReadExperts(reader, family, spec);
  if (reader.ok()) spec.windows = ReadWindows(reader, family, p.layers);
  return spec;
}

Result<ModelShape> ParseObject(const Json& json, std::optional<WeightType> weight_type) {
  Reader reader(json);
  const HfFamily* const family = FindFamily(reader);
  if (family == nullptr) return reader.status();
  ShapeSpec spec = ReadSpec(reader, *family);
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
  // Models that read pictures too keep the decoder's part in an object of its own.
  if (!json.contains(kNames.d_model) && json.contains("text_config") &&
      json["text_config"].is_object())
    return ParseObject(json["text_config"], weight_type);
  return ParseObject(json, weight_type);
}

}  // namespace manyhead
