#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "manyhead/memory.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/memory/checked.h"
#include "runtime/platform/errors.h"

// Which type llama.cpp's quantiser gives each tensor of a mix. Source: the rules of
// src/llama-quant.cpp in ggml-org/llama.cpp, as of its commit 007dbbf: which tensors are quantised,
// the type by category and layer without an importance matrix, and the type for rows that are no
// whole blocks.

namespace manyhead {
namespace {

constexpr std::int64_t kLargeGroup = 4;  // query heads of a KV head from which values count more
// Layers of the 70B models, whose values get still more bits.
constexpr std::int64_t kLargeLayers = 80;
constexpr std::int64_t kMixtralExperts = 8;

enum class Mix : std::uint8_t { kQ2K, kQ2KS, kQ3KS, kQ3KM, kQ3KL, kQ4KS, kQ4KM, kQ5KS, kQ5KM };

struct MixRow {
  const char* name;
  Mix mix;
  WeightType base;  ///< type of tensors that no rule changes
};

constexpr MixRow kMixes[] = {
    {"q2_k", Mix::kQ2K, WeightType::kQ2_K},    {"q2_k_s", Mix::kQ2KS, WeightType::kQ2_K},
    {"q3_k_s", Mix::kQ3KS, WeightType::kQ3_K}, {"q3_k_m", Mix::kQ3KM, WeightType::kQ3_K},
    {"q3_k_l", Mix::kQ3KL, WeightType::kQ3_K}, {"q4_k_s", Mix::kQ4KS, WeightType::kQ4_K},
    {"q4_k_m", Mix::kQ4KM, WeightType::kQ4_K}, {"q5_k_s", Mix::kQ5KS, WeightType::kQ5_K},
    {"q5_k_m", Mix::kQ5KM, WeightType::kQ5_K},
};

/// Returns true where a mix gives more bits to layer `i` of `n`: in the first and last eighth, and
/// in every third of the other layers.
bool MoreBits(std::int64_t i, std::int64_t n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/// The properties of a model that the rules use.
struct MixModel {
  std::int64_t layers = 0;
  std::int64_t group = 1;
  std::int64_t experts = 0;
  bool tied = false;
  bool is_70b = false;
};

MixModel ModelOf(const ModelConfig& config) {
  MixModel model;
  model.layers = std::ssize(config.layers);
  const LayerConfig& first = config.layers.front();
  model.group = first.num_heads / first.num_kv_heads;
  model.experts = config.num_experts;
  model.tied = config.tied_embeddings;
  const std::string& family = config.architecture;
  model.is_70b =
      model.layers == kLargeLayers &&
      (family == "qwen2" || (model.group > 1 && (family == "llama" || family == "mistral")));
  return model;
}

WeightType ValueType(const MixRow& mix, const MixModel& model, std::int64_t layer) {
  WeightType type = mix.base;
  switch (mix.mix) {
    case Mix::kQ2K:
      type = model.group >= kLargeGroup ? WeightType::kQ4_K : WeightType::kQ3_K;
      break;
    case Mix::kQ2KS:
      if (model.group >= kLargeGroup) type = WeightType::kQ4_K;
      break;
    case Mix::kQ3KM:
      type = layer < 2 ? WeightType::kQ5_K : WeightType::kQ4_K;
      break;
    case Mix::kQ3KL:
      type = WeightType::kQ5_K;
      break;
    case Mix::kQ4KS:
      if (layer < 4) type = WeightType::kQ5_K;
      break;
    case Mix::kQ4KM:
    case Mix::kQ5KM:
      if (MoreBits(layer, model.layers)) type = WeightType::kQ6_K;
      break;
    default:
      break;
  }
  const bool low = type == WeightType::kQ3_K || type == WeightType::kQ4_K;
  if (model.is_70b && low) type = WeightType::kQ5_K;
  return model.experts == kMixtralExperts ? WeightType::kQ8_0 : type;
}

WeightType DownType(const MixRow& mix, const MixModel& model, std::int64_t layer) {
  const std::int64_t n = model.layers;
  switch (mix.mix) {
    case Mix::kQ2K:
      return WeightType::kQ3_K;
    case Mix::kQ2KS:
      return layer < n / 8 ? WeightType::kQ4_K : mix.base;
    case Mix::kQ3KM:
      return layer < n / 16 ? WeightType::kQ5_K : WeightType::kQ4_K;
    case Mix::kQ3KL:
      return WeightType::kQ5_K;
    case Mix::kQ4KS:
      return layer < n / 8 ? WeightType::kQ5_K : mix.base;
    case Mix::kQ4KM:
    case Mix::kQ5KM:
      return MoreBits(layer, n) ? WeightType::kQ6_K : mix.base;
    default:
      return mix.base;
  }
}

WeightType OutputProjectionType(const MixRow& mix, const MixModel& model) {
  if (model.experts == kMixtralExperts)
    return mix.base == WeightType::kQ5_K || mix.mix == Mix::kQ2KS || mix.mix == Mix::kQ3KL
               ? mix.base
               : WeightType::kQ5_K;
  switch (mix.mix) {
    case Mix::kQ2K:
      return WeightType::kQ3_K;
    case Mix::kQ3KM:
      return WeightType::kQ4_K;
    case Mix::kQ3KL:
      return WeightType::kQ5_K;
    default:
      return mix.base;
  }
}

/// The type for rows of `cols` numbers where they are no whole blocks of `type`.
WeightType FittingType(WeightType type, std::int64_t cols) {
  if (cols % WeightBlockOf(type).elements == 0) return type;
  switch (type) {
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
      type = WeightType::kQ4_0;
      break;
    case WeightType::kQ4_K:
      type = WeightType::kQ5_0;
      break;
    case WeightType::kQ5_K:
      type = WeightType::kQ5_1;
      break;
    default:
      type = WeightType::kQ8_0;
      break;
  }
  return cols % WeightBlockOf(type).elements == 0 ? type : WeightType::kF16;
}

WeightType TypeOf(const MixRow& mix, const MixModel& model, const TensorPlace& place,
                  std::int64_t cols) {
  WeightType type = mix.base;
  switch (place.row->role) {
    case TensorRole::kEmbedding:
      if (!model.tied) break;
      [[fallthrough]];
    case TensorRole::kHead:
      type = cols % WeightBlockOf(mix.base).elements != 0 ? WeightType::kQ8_0 : WeightType::kQ6_K;
      break;
    case TensorRole::kValue:
    case TensorRole::kQueryKeyValue:
      type = ValueType(mix, model, place.layer);
      break;
    case TensorRole::kKey:
      if (model.experts == kMixtralExperts) type = WeightType::kQ8_0;
      break;
    case TensorRole::kAttentionOutput:
      type = OutputProjectionType(mix, model);
      break;
    case TensorRole::kDown:
    case TensorRole::kDownExperts:
      type = DownType(mix, model, place.layer);
      break;
    default:
      break;
  }
  return FittingType(type, cols);
}

/// Whether the quantiser changes a tensor of `row` at all.
bool IsQuantised(const TensorRow& row) {
  return row.part == TensorPart::kMatrix && row.role != TensorRole::kRouter &&
         row.role != TensorRole::kPositions;
}

}  // namespace

std::vector<std::string> WeightMixNames() {
  std::vector<std::string> names;
  for (const MixRow& mix : kMixes) names.emplace_back(mix.name);
  return names;
}

Result<ModelShape> MixWeightTypes(ModelShape shape, std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto mix = std::find_if(std::begin(kMixes), std::end(kMixes),
                                [&](const MixRow& one) { return lower == one.name; });
  if (mix == std::end(kMixes)) {
    std::string names;
    for (const std::string& one : WeightMixNames()) names += (names.empty() ? "" : ", ") + one;
    return InvalidArgument("MixWeightTypes", "mix = ", name, "; expected one of ", names);
  }
  if (shape.config.layers.empty() || shape.config.layers.front().num_kv_heads < 1)
    return InvalidArgument("MixWeightTypes", "the shape has ", shape.config.layers.size(),
                           " layers; expected 1 or more with KV heads");
  const MixModel model = ModelOf(shape.config);
  for (TensorInfo& tensor : shape.tensors) {
    const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
    if (!place || !IsQuantised(*place->row)) continue;
    tensor.type = TypeOf(*mix, model, *place, tensor.shape.back());
    const WeightBlock block = WeightBlockOf(tensor.type);
    CheckedMath math;
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements = math.Product({elements, size});
    tensor.size_bytes = math.Product({elements / block.elements, block.bytes});
    if (math.overflow())
      return InvalidArgument("MixWeightTypes", "tensor ", tensor.name,
                             " has more than 2^63 - 1 bytes");
  }
  shape.quantization.clear();
  return shape;
}

}  // namespace manyhead
