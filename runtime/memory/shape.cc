#include <algorithm>
#include <utility>

#include "runtime/architecture/tensor_table.h"
#include "runtime/memory/checked.h"
#include "runtime/memory/shape_spec.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr std::int64_t kDefaultContext = 8192;

Status CheckRanges(const ShapeSpec& spec) {
  const ShapeParams& p = spec.params;
  const ShapeNames& names = spec.names;
  const struct {
    const char* name;
    std::int64_t value, low, high;
  } ranges[] = {
      {names.d_model, p.d_model, 1, kMaxShapeDim},
      {names.num_heads, p.num_heads, 1, kMaxShapeHeads},
      {names.num_kv_heads, p.num_kv_heads, 0, kMaxShapeHeads},
      {names.head_dim, p.head_dim, 0, kMaxShapeHeadDim},
      {"head_dim_v", p.head_dim_v, 0, kMaxShapeHeadDim},
      {names.layers, p.layers, 1, kMaxShapeLayers},
      {names.ffn_dim, p.ffn_dim, 0, kMaxShapeDim},
      {names.vocab_size, p.vocab_size, 0, kMaxShapeVocab},
      {names.context, p.context_length, 0, kMaxShapeContext},
      {"window", p.window, 0, kMaxShapeContext},
      {"window_pattern", p.window_pattern, 0, kMaxShapeLayers},
      {"num_experts", spec.num_experts, 0, kMaxShapeExperts},
      {"experts_per_token", spec.experts_per_token, 0, spec.num_experts},
  };
  for (const auto& [name, value, low, high] : ranges)
    if (value < low || value > high)
      return InvalidArgument(names.where, name, " = ", value, "; expected ", low, " to ", high);
  return Status();
}

/// Fills in the defaults of the heads.
Status CompleteHeads(ShapeSpec& spec) {
  ShapeParams& p = spec.params;
  const ShapeNames& names = spec.names;
  if (p.num_kv_heads == 0) p.num_kv_heads = p.num_heads;
  if (p.num_heads % p.num_kv_heads != 0)
    return InvalidArgument(names.where, names.num_heads, " = ", p.num_heads,
                           " is not a multiple of ", names.num_kv_heads, " = ", p.num_kv_heads);
  if (p.head_dim == 0) {
    if (p.d_model % p.num_heads != 0)
      return InvalidArgument(names.where, names.d_model, " = ", p.d_model, " is not a multiple of ",
                             names.num_heads, " = ", p.num_heads, ", and no ", names.head_dim,
                             " is declared");
    p.head_dim = p.d_model / p.num_heads;
    if (p.head_dim > kMaxShapeHeadDim)
      return InvalidArgument(names.where, names.d_model, " / ", names.num_heads, " = ", p.d_model,
                             " / ", p.num_heads, " = ", p.head_dim, "; expected heads of up to ",
                             kMaxShapeHeadDim);
  }
  if (p.head_dim_v == 0) p.head_dim_v = p.head_dim;
  if (p.context_length == 0) p.context_length = kDefaultContext;
  return Status();
}

/// Makes a config of equal layers. A decoder of attention alone has no norms.
ModelConfig MakeConfig(const ShapeSpec& spec) {
  const ShapeParams& p = spec.params;
  ModelConfig config = spec.architecture == nullptr ? ModelConfig() : ConfigOf(*spec.architecture);
  config.architecture = spec.model_type;
  config.vocab_size = p.vocab_size;
  config.d_model = p.d_model;
  config.context_length = p.context_length;
  if (p.ffn_dim == 0 && p.vocab_size == 0) config.norm = NormKind::kNone;
  config.qk_norm = p.qk_norm;
  config.post_norms = p.post_norms;
  config.qkv_bias = p.qkv_bias;
  config.output_bias = p.output_bias;
  config.ffn_bias = spec.ffn_bias;
  config.tied_embeddings = p.tied_embeddings || p.vocab_size == 0;
  config.num_experts = spec.num_experts;
  config.experts_per_token = spec.experts_per_token;
  const bool rotary = config.positions == PositionKind::kRotary;
  const bool local_rope = spec.architecture != nullptr && spec.architecture->local_rope;
  if (!rotary) config.num_positions = p.context_length;
  RopeConfig rope;
  rope.rotary_dim = p.head_dim / 2 * 2;
  if (rotary) config.ropes.assign(local_rope ? 2 : 1, rope);
  for (std::int64_t i = 0; i < p.layers; ++i) {
    LayerConfig layer;
    layer.num_heads = p.num_heads;
    layer.num_kv_heads = p.num_kv_heads;
    layer.head_dim = p.head_dim;
    layer.head_dim_v = p.head_dim_v;
    layer.ffn_dim = p.ffn_dim;
    const bool local = p.window_pattern == 0 || (i + 1) % p.window_pattern != 0;
    layer.window = !spec.windows.empty() ? spec.windows[static_cast<std::size_t>(i)]
                   : local               ? p.window
                                         : 0;
    layer.rope = layer.window > 0 && local_rope ? 1 : 0;
    config.layers.push_back(layer);
  }
  return config;
}

/// Returns the tensor that the table asks for, as it would be stored.
Result<TensorInfo> MakeTensor(const ShapeSpec& spec, const ModelTensor& wanted) {
  const std::string name = GgufName(*wanted.row, wanted.layer);
  const WeightType type =
      wanted.row->part == TensorPart::kMatrix ? spec.params.weight_type : WeightType::kF32;
  const WeightBlock block = WeightBlockOf(type);
  if (wanted.shape.back() % block.elements != 0)
    return InvalidArgument(spec.names.where, "tensor ", name, " has rows of ", wanted.shape.back(),
                           "; expected a multiple of ", block.elements, ", the block of ",
                           WeightTypeName(type));
  CheckedMath math;
  std::int64_t elements = 1;
  for (const std::int64_t size : wanted.shape) elements = math.Product({elements, size});
  std::int64_t bytes = math.Product({elements / block.elements, block.bytes});
  if (math.overflow())
    return InvalidArgument(spec.names.where, "tensor ", name, " has more than 2^63 - 1 bytes");
  if (spec.quantization)
    bytes = QuantizedBytes(*spec.quantization, *wanted.row, elements).value_or(bytes);
  return TensorInfo{name, type, wanted.shape, bytes};
}

}  // namespace

Result<ModelShape> BuildShape(const ShapeSpec& given) {
  ShapeSpec spec = given;
  if (Status status = CheckRanges(spec); !status.ok()) return status;
  if (Status status = CompleteHeads(spec); !status.ok()) return status;
  ModelShape shape;
  shape.config = MakeConfig(spec);
  const ProjectionLayout projections =
      spec.architecture == nullptr ? ProjectionLayout::kSeparate : spec.architecture->projections;
  for (const ModelTensor& wanted : ListTensors(shape.config, projections)) {
    Result<TensorInfo> tensor = MakeTensor(spec, wanted);
    if (!tensor.ok()) return tensor.status();
    shape.tensors.push_back(*std::move(tensor));
  }
  if (spec.quantization) shape.quantization = spec.quantization->method;
  return shape;
}

Result<ModelShape> MakeModelShape(const ShapeParams& params) {
  ShapeSpec spec;
  spec.params = params;
  return BuildShape(spec);
}

}  // namespace manyhead
