#include "runtime/model/config.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

constexpr Family kFamilies[] = {
    {.name = "llama",
     .interleaved_rope = true,
     .activation = Activation::kSilu,
     .qk_norm = false,
     .post_norms = false,
     .scaled_embedding = false,
     .window_pattern = 0},
    {.name = "qwen2",
     .interleaved_rope = false,
     .activation = Activation::kSilu,
     .qk_norm = false,
     .post_norms = false,
     .scaled_embedding = false,
     .window_pattern = 0},
    {.name = "qwen3",
     .interleaved_rope = false,
     .activation = Activation::kSilu,
     .qk_norm = true,
     .post_norms = false,
     .scaled_embedding = false,
     .window_pattern = 0},
    {.name = "gemma3",
     .interleaved_rope = false,
     .activation = Activation::kGeluTanh,
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .window_pattern = 6},
};

// Above any real model; keeps sizes computed from a file far from overflow.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeadDim = 1024;  // of the attention kernels
constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;
constexpr std::int64_t kGemma27bLayers = 62;  // the size whose logits scale differs

/// Reads the keys of one architecture and remembers the first thing that is wrong.
class Reader {
 public:
  Reader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  /// The integer at `key` within [low, high]; `fallback` when absent, unless it is negative.
  std::int64_t Int(const std::string& key, std::int64_t low, std::int64_t high,
                   std::int64_t fallback) {
    const std::optional<std::int64_t> value = Take(file_.GetInt(Name(key)), key, fallback < 0);
    return value ? InRange(key, *value, low, high) : fallback;
  }

  /// The finite number at `key`, above `low`.
  double Float(const std::string& key, double low, double fallback) {
    const std::optional<double> value = Take(file_.GetFloat(Name(key)), key, false);
    if (!value) return fallback;
    if (!std::isfinite(*value) || *value <= low) {
      std::ostringstream message;
      message << Name(key) << " = " << *value << "; expected a finite number above " << low;
      Fail(message.str());
    }
    return *value;
  }

  /// One integer a layer: the file holds an array of them or one for all.
  std::vector<std::int64_t> PerLayer(const std::string& key, std::int64_t layers, std::int64_t low,
                                     std::int64_t high, std::int64_t fallback) {
    // Before it is widened: an array may be as long as the file.
    if (const std::int64_t count = file_.Count(Name(key)); count > 1 && count != layers)
      Fail(Name(key) + " has " + std::to_string(count) +
           " values for block_count = " + std::to_string(layers));
    if (!ok()) return {};
    const auto values = Take(file_.GetInts(Name(key)), key, fallback < 0);
    if (!ok()) return {};
    if (!values) return std::vector<std::int64_t>(static_cast<std::size_t>(layers), fallback);
    for (std::int64_t value : *values) InRange(key, value, low, high);
    if (values->size() == 1)
      return std::vector<std::int64_t>(static_cast<std::size_t>(layers), values->front());
    if (static_cast<std::int64_t>(values->size()) != layers)
      Fail(Name(key) + " has " + std::to_string(values->size()) +
           " values for block_count = " + std::to_string(layers));
    return *values;
  }

  std::string String(const std::string& full_key) {
    const auto value = Take(file_.GetString(full_key), full_key, false);
    return value ? std::string(*value) : std::string();
  }

  std::string Name(const std::string& key) const { return prefix_ + "." + key; }

  void Fail(std::string message) {
    if (ok()) status_ = Status(StatusCode::kIoError, std::move(message));
  }

  std::int64_t InRange(const std::string& key, std::int64_t value, std::int64_t low,
                       std::int64_t high) {
    if (value < low || value > high)
      Fail(Name(key) + " = " + std::to_string(value) + "; expected " + std::to_string(low) +
           " to " + std::to_string(high));
    return value;
  }

 private:
  template <class T>
  std::optional<T> Take(Result<std::optional<T>> result, const std::string& key, bool required) {
    if (!result.ok()) {
      if (ok()) status_ = result.status();
      return std::nullopt;
    }
    if (!*result && required) Fail(Name(key) + " is missing");
    return *std::move(result);
  }

  const GgufFile& file_;
  std::string prefix_;
  Status status_;
};

Result<RopeConfig> ReadRope(Reader& reader, const GgufFile& file, const Family& family,
                            std::int64_t head_dim, std::int64_t context) {
  RopeConfig rope;
  rope.rotary_dim = reader.Int("rope.dimension_count", 2, head_dim, head_dim);
  if (rope.rotary_dim % 2 != 0)
    reader.Fail(reader.Name("rope.dimension_count") + " = " + std::to_string(rope.rotary_dim) +
                "; expected an even number");
  rope.interleaved = family.interleaved_rope;
  rope.base = reader.Float("rope.freq_base", 1, 10000);
  rope.factor = reader.Float("rope.scaling.factor", 0, reader.Float("rope.scale_linear", 0, 1));
  const std::string scaling = reader.String(reader.Name("rope.scaling.type"));
  if (scaling == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.original_context =
        reader.Int("rope.scaling.original_context_length", 1, kMaxContext, context);
    rope.attention_factor = reader.Float("rope.scaling.attn_factor", 0, 1);
    rope.beta_fast = reader.Float("rope.scaling.yarn_beta_fast", 0, 32);
    rope.beta_slow = reader.Float("rope.scaling.yarn_beta_slow", 0, 1);
  } else if (scaling == "linear" || (scaling.empty() && rope.factor != 1)) {
    rope.scaling = RopeScaling::kLinear;
  } else if (!scaling.empty() && scaling != "none") {
    return Status(StatusCode::kUnsupported, reader.Name("rope.scaling.type") + " = " +
                                                Printable(scaling) +
                                                "; expected none, linear or yarn");
  }
  if (const GgufTensor* factors = file.FindTensor("rope_freqs.weight"); factors != nullptr) {
    if (factors->type != WeightType::kF32 || factors->cols() != rope.rotary_dim / 2 ||
        factors->rows() != 1)
      reader.Fail("rope_freqs.weight has " + std::to_string(factors->cols() * factors->rows()) +
                  " elements of " + WeightTypeName(factors->type) + "; expected " +
                  std::to_string(rope.rotary_dim / 2) + " of F32");
    if (!reader.ok()) return reader.status();
    rope.scaling = RopeScaling::kFactors;
    const auto* values = reinterpret_cast<const float*>(factors->data);
    rope.factors.assign(values, values + rope.rotary_dim / 2);
    for (float factor : rope.factors)
      if (!(factor > 0) || !std::isfinite(factor))
        reader.Fail("rope_freqs.weight holds " + std::to_string(factor) +
                    "; expected finite numbers above 0");
  }
  if (!reader.ok()) return reader.status();
  // What the keys' own ranges leave, e.g. one that must be above another.
  if (const Result<Rope> created = Rope::Create(rope, head_dim, Isa::kScalar); !created.ok())
    return Status(StatusCode::kIoError, created.status().message());
  return rope;
}

/// Which layers see only a window: all when the family has no rule, else all but every n-th.
Status ReadWindows(Reader& reader, const GgufFile& file, const Family& family,
                   ModelConfig& config) {
  const std::int64_t window = reader.Int("attention.sliding_window", 0, kMaxContext, 0);
  const std::string key = reader.Name("attention.sliding_window_pattern");
  // A number n means every n-th layer is full; a list says for each layer whether it has a window.
  Result<std::optional<std::vector<std::int64_t>>> pattern = file.GetInts(key);
  if (!pattern.ok()) return pattern.status();
  const std::int64_t layers = static_cast<std::int64_t>(config.layers.size());
  std::int64_t every = family.window_pattern;
  const bool listed = *pattern && (*pattern)->size() != 1;
  if (*pattern && (*pattern)->size() == 1) every = (*pattern)->front();
  if (listed && static_cast<std::int64_t>((*pattern)->size()) != layers)
    reader.Fail(key + " has " + std::to_string((*pattern)->size()) +
                " values for block_count = " + std::to_string(layers));
  if (every < 0) reader.Fail(key + " = " + std::to_string(every) + "; expected at least 0");
  if (!reader.ok()) return reader.status();
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool local = listed ? (**pattern)[i] != 0 : every == 0 || (i + 1) % every != 0;
    config.layers[i].window = local ? window : 0;
    config.layers[i].rope = local && family.window_pattern > 0 ? 1 : 0;
  }
  return {};
}

Status ReadLayers(Reader& reader, ModelConfig& config) {
  const std::int64_t layers = reader.Int("block_count", 1, kMaxLayers, -1);
  const auto heads = reader.PerLayer("attention.head_count", layers, 1, kMaxDim, -1);
  if (!reader.ok()) return reader.status();
  const auto kv_heads = reader.PerLayer("attention.head_count_kv", layers, 1, kMaxDim, 0);
  const auto ffn = reader.PerLayer("feed_forward_length", layers, 1, kMaxDim, -1);
  const std::int64_t head_dim =
      reader.Int("attention.key_length", 1, kMaxHeadDim, config.d_model / heads[0]);
  reader.InRange("embedding_length / attention.head_count", head_dim, 1, kMaxHeadDim);
  const std::int64_t head_dim_v = reader.Int("attention.value_length", 1, kMaxHeadDim, head_dim);
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
          reader.Name("attention.head_count") + " = " + std::to_string(layer.num_heads) +
          " is not a multiple of attention.head_count_kv = " + std::to_string(layer.num_kv_heads));
    config.layers.push_back(layer);
  }
  return reader.status();
}

}  // namespace

Result<Family> ReadFamily(const GgufFile& file) {
  const auto architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return architecture.status();
  if (!*architecture) return Status(StatusCode::kIoError, "general.architecture is missing");
  std::string known;
  for (const Family& family : kFamilies) {
    if (**architecture == family.name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  return Status(StatusCode::kUnsupported, "general.architecture = " + Printable(**architecture) +
                                              "; expected one of " + known);
}

Result<ModelConfig> ReadConfig(const GgufFile& file, const Family& family) {
  Reader reader(file, family.name);
  ModelConfig config;
  config.architecture = family.name;
  config.name = reader.String("general.name");
  config.activation = family.activation;
  config.qk_norm = family.qk_norm;
  config.post_norms = family.post_norms;
  config.d_model = reader.Int("embedding_length", 1, kMaxDim, -1);
  config.context_length = reader.Int("context_length", 1, kMaxContext, -1);
  config.norm_eps = static_cast<float>(reader.Float("attention.layer_norm_rms_epsilon", 0, 1e-5));
  config.logit_softcap = static_cast<float>(reader.Float("final_logit_softcapping", 0, 0));
  if (reader.Int("expert_count", 0, kMaxDim, 0) > 0)
    return Status(StatusCode::kUnsupported,
                  reader.Name("expert_count") + " is set; expected a model " + "without experts");
  if (reader.Float("attn_logit_softcapping", -1, 0) > 0)
    return Status(StatusCode::kUnsupported,
                  reader.Name("attn_logit_softcapping") + " is set; expected none");
  if (Status status = reader.status(); !status.ok()) return status;
  if (Status status = ReadLayers(reader, config); !status.ok()) return status;
  if (family.scaled_embedding)
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));

  Result<RopeConfig> rope =
      ReadRope(reader, file, family, config.layers[0].head_dim, config.context_length);
  if (!rope.ok()) return rope.status();
  config.ropes.push_back(*std::move(rope));
  if (Status status = ReadWindows(reader, file, family, config); !status.ok()) return status;
  if (family.window_pattern > 0) {
    // Layers with a window turn by a base of their own and are not stretched.
    RopeConfig local = config.ropes[0];
    local.scaling = RopeScaling::kNone;
    local.factor = 1;
    local.factors.clear();
    local.base = reader.Float("rope.freq_base_swa", 1, 10000);
    if (!reader.ok()) return reader.status();
    config.ropes.push_back(local);
    if (static_cast<std::int64_t>(config.layers.size()) == kGemma27bLayers)
      config.softmax_scale = 1 / std::sqrt(static_cast<float>(config.d_model) /
                                           static_cast<float>(config.layers[0].num_heads));
  }
  return config;
}

}  // namespace manyhead
