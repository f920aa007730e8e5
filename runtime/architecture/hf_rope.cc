#include "runtime/architecture/hf_rope.h"

#include <cmath>
#include <string>
#include <utility>

#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

/// The object that describes one rotary embedding, and the keys in it.
class Section {
 public:
  Section(ConfigReader& reader, std::string name) : reader_(reader), name_(std::move(name)) {}

  std::string Key(std::string_view key) const { return name_ + "." + std::string(key); }
  bool Has(std::string_view key) const { return reader_.Has(Key(key)); }
  double Float(std::string_view key, double low, double fallback) const {
    return reader_.Float(Key(key), low, fallback);
  }
  /// The kind of scaling; files have one of two names for it.
  std::string Type() const {
    const std::string key = Has("rope_type") ? "rope_type" : "type";
    return reader_.String(reader_.Name(Key(key)));
  }
  ConfigReader& reader() const { return reader_; }

 private:
  ConfigReader& reader_;
  std::string name_;
};

std::int64_t OriginalContext(const Section& section, std::int64_t context) {
  return section.reader().Int(section.Key("original_max_position_embeddings"), 1, kMaxContext,
                              context);
}

/// Returns the amplitude of yarn as a factor on the usual one.
double YarnAttentionFactor(const Section& section, double factor) {
  const auto usual = [](double stretch, double scale) {
    return stretch <= 1 ? 1 : 0.1 * scale * std::log(stretch) + 1;
  };
  double amplitude = usual(factor, 1);
  if (section.Has("mscale") && section.Has("mscale_all_dim")) {
    const double scale = section.Float("mscale", 0, 1), all = section.Float("mscale_all_dim", 0, 1);
    amplitude = usual(factor, scale) / usual(factor, all);
  }
  amplitude = section.Float("attention_factor", 0, amplitude);
  return amplitude / usual(factor, 1);
}

/// Reads factors for short and for long contexts; the context may stand beside the section.
void ReadLongRope(const Section& section, std::int64_t context, RopeConfig& rope) {
  ConfigReader& reader = section.reader();
  rope.scaling = RopeScaling::kFactors;
  rope.original_context = OriginalContext(
      section, reader.Int("original_max_position_embeddings", 1, kMaxContext, context));
  rope.factors = reader.Floats(section.Key("short_factor"));
  rope.long_factors = reader.Floats(section.Key("long_factor"));
  const auto pairs = static_cast<std::size_t>(rope.rotary_dim / 2);
  const std::pair<const char*, const std::vector<float>*> lists[] = {
      {"short_factor", &rope.factors}, {"long_factor", &rope.long_factors}};
  for (const auto& [key, factors] : lists) {
    if (factors->size() != pairs)
      reader.Fail(Concat(reader.Name(section.Key(key)), " has ", factors->size(),
                         " numbers; expected ", pairs, ", half of what turns in a head"));
    for (const float factor : *factors)
      if (!(factor > 0)) reader.Fail(section.Key(key), static_cast<double>(factor), "above", 0);
  }
  const auto original = static_cast<double>(rope.original_context);
  const double stretch = section.Float("factor", 0, static_cast<double>(context) / original);
  const double usual =
      stretch <= 1 || original <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(original));
  rope.attention_factor = section.Float("attention_factor", 0, usual);
}

Status ReadScaling(const Section& section, std::int64_t context, RopeConfig& rope) {
  ConfigReader& reader = section.reader();
  const std::string type = section.Type();
  if (type.empty() || type == "default") return reader.status();
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = section.Float("factor", 0, -1);
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = section.Float("factor", 0, -1);
    rope.low_freq_factor = section.Float("low_freq_factor", 0, -1);
    rope.high_freq_factor = section.Float("high_freq_factor", 0, -1);
    rope.original_context = OriginalContext(section, -1);
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.original_context = OriginalContext(section, context);
    rope.factor = section.Float("factor", 0, -1);
    rope.beta_fast = section.Float("beta_fast", 0, rope.beta_fast);
    rope.beta_slow = section.Float("beta_slow", 0, rope.beta_slow);
    rope.attention_factor = YarnAttentionFactor(section, rope.factor);
    if (!reader.Bool(section.Key("truncate"), true))
      return MakeError(StatusCode::kUnsupported,
                       "config.json: ", reader.Name(section.Key("truncate")),
                       " = false; expected true");
  } else if (type == "longrope" || type == "su") {
    ReadLongRope(section, context, rope);
  } else if (reader.ok()) {
    return MakeError(StatusCode::kUnsupported, "config.json: ", reader.Name(section.Key("type")),
                     " = ", Printable(type),
                     "; expected default, linear, llama3, yarn or longrope");
  }
  return reader.status();
}

/// Returns the part of a head that turns. Files have the key in one of two places, or by another
/// name.
double RotaryPart(const Section& section, const Architecture& architecture) {
  ConfigReader& reader = section.reader();
  double part = reader.Float("rotary_pct", 0, architecture.hf_rotary_part);
  part = reader.Float("partial_rotary_factor", 0, part);
  part = section.Float("partial_rotary_factor", 0, part);
  if (part > 1) reader.Fail("partial_rotary_factor", part, "of at most", 1);
  return part;
}

/// Returns the base for a section that has none of its own.
double ReadBase(ConfigReader& reader, double fallback) {
  return reader.Float("rope_theta", 1, reader.Float("rotary_emb_base", 1, fallback));
}

Result<RopeConfig> ReadRope(const Section& section, const Architecture& architecture,
                            const ModelConfig& config, double base) {
  ConfigReader& reader = section.reader();
  const std::int64_t head_dim = config.layers.front().head_dim;
  RopeConfig rope;
  rope.base = section.Float("rope_theta", 1, base);
  const double part = RotaryPart(section, architecture);
  if (!reader.ok()) return reader.status();
  rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0)
    return IoError("config.json", "head_dim = ", head_dim,
                   " of which partial_rotary_factor = ", part, " turns ", rope.rotary_dim,
                   " elements; expected an even number of them");
  if (Status status = ReadScaling(section, config.context_length, rope); !status.ok())
    return status;
  // This checks what the keys' own ranges leave, e.g. one that must be above another.
  if (const Result<Rope> created = Rope::Create(rope, head_dim, Isa::kScalar); !created.ok())
    return IoError("config.json", created.status().message());
  return rope;
}

}  // namespace

Status ReadHfRopes(ConfigReader& reader, const Architecture& architecture, ModelConfig& config) {
  if (config.positions != PositionKind::kRotary) return {};
  const bool by_kind = reader.Has("rope_parameters.full_attention");
  const bool new_form = reader.Has("rope_parameters");
  const Section section(reader, by_kind    ? "rope_parameters.full_attention"
                                : new_form ? "rope_parameters"
                                           : "rope_scaling");
  Result<RopeConfig> rope =
      ReadRope(section, architecture, config, ReadBase(reader, architecture.hf_rope_base));
  if (!rope.ok()) return rope.status();
  config.ropes.push_back(*std::move(rope));
  if (!architecture.local_rope) return reader.status();
  // Layers with a window turn by a base of their own and are not stretched.
  RopeConfig local;
  local.rotary_dim = config.ropes[0].rotary_dim;
  local.base = reader.Float("rope_local_base_freq", 1, local.base);
  if (by_kind)
    local.base = reader.Float("rope_parameters.sliding_attention.rope_theta", 1, local.base);
  config.ropes.push_back(local);
  for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 1 : 0;
  return reader.status();
}

}  // namespace manyhead
