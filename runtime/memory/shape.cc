#include <algorithm>
#include <initializer_list>
#include <utility>

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
      {"context_length", p.context_length, 0, kMaxShapeContext},
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

/// Lists the tensors of a model, and notes the first that cannot be.
class TensorList {
 public:
  TensorList(const ShapeNames& names, WeightType type) : names_(names), type_(type) {}

  void Matrix(const std::string& name, std::vector<std::int64_t> shape) {
    Add(name, type_, std::move(shape));
  }
  void Vector(const std::string& name, std::int64_t size) { Add(name, WeightType::kF32, {size}); }
  void VectorIf(bool present, const std::string& name, std::int64_t size) {
    if (present) Vector(name, size);
  }
  const Status& status() const { return status_; }
  std::vector<TensorInfo> Take() { return std::move(tensors_); }

 private:
  void Add(const std::string& name, WeightType type, std::vector<std::int64_t> shape) {
    const WeightBlock block = WeightBlockOf(type);
    if (shape.back() % block.elements != 0 && status_.ok())
      status_ = InvalidArgument(names_.where, "tensor ", name, " has rows of ", shape.back(),
                                "; expected a multiple of ", block.elements, ", the block of ",
                                WeightTypeName(type));
    CheckedMath math;
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) elements = math.Product({elements, size});
    const std::int64_t bytes = math.Product({elements / block.elements, block.bytes});
    if (math.overflow() && status_.ok())
      status_ = InvalidArgument(names_.where, "tensor ", name, " has more than 2^63 - 1 bytes");
    tensors_.push_back({name, type, std::move(shape), bytes});
  }

  const ShapeNames& names_;
  WeightType type_;
  Status status_;
  std::vector<TensorInfo> tensors_;
};

void ListAttention(const ShapeSpec& spec, const std::string& block, TensorList& list) {
  const ShapeParams& p = spec.params;
  const std::int64_t q = p.num_heads * p.head_dim, k = p.num_kv_heads * p.head_dim;
  const std::int64_t v = p.num_kv_heads * p.head_dim_v;
  list.Matrix(block + "attn_q.weight", {q, p.d_model});
  list.Matrix(block + "attn_k.weight", {k, p.d_model});
  list.Matrix(block + "attn_v.weight", {v, p.d_model});
  list.Matrix(block + "attn_output.weight", {p.d_model, p.num_heads * p.head_dim_v});
  list.VectorIf(p.qkv_bias, block + "attn_q.bias", q);
  list.VectorIf(p.qkv_bias, block + "attn_k.bias", k);
  list.VectorIf(p.qkv_bias, block + "attn_v.bias", v);
  list.VectorIf(p.output_bias, block + "attn_output.bias", p.d_model);
  list.VectorIf(p.qk_norm, block + "attn_q_norm.weight", p.head_dim);
  list.VectorIf(p.qk_norm, block + "attn_k_norm.weight", p.head_dim);
  list.VectorIf(spec.sinks, block + "attn_sinks.weight", p.num_heads);
}

void ListFeedForward(const ShapeSpec& spec, const std::string& block, TensorList& list) {
  const std::int64_t d = spec.params.d_model, F = spec.params.ffn_dim, E = spec.num_experts;
  if (F == 0) return;
  if (E == 0) {
    list.Matrix(block + "ffn_gate.weight", {F, d});
    list.Matrix(block + "ffn_up.weight", {F, d});
    list.Matrix(block + "ffn_down.weight", {d, F});
    list.VectorIf(spec.ffn_bias, block + "ffn_gate.bias", F);
    list.VectorIf(spec.ffn_bias, block + "ffn_up.bias", F);
    list.VectorIf(spec.ffn_bias, block + "ffn_down.bias", d);
    return;
  }
  list.Matrix(block + "ffn_gate_inp.weight", {E, d});
  list.Matrix(block + "ffn_gate_exps.weight", {E, F, d});
  list.Matrix(block + "ffn_up_exps.weight", {E, F, d});
  list.Matrix(block + "ffn_down_exps.weight", {E, d, F});
  list.VectorIf(spec.ffn_bias, block + "ffn_gate_inp.bias", E);
  list.VectorIf(spec.ffn_bias, block + "ffn_gate_exps.bias", E * F);
  list.VectorIf(spec.ffn_bias, block + "ffn_up_exps.bias", E * F);
  list.VectorIf(spec.ffn_bias, block + "ffn_down_exps.bias", E * d);
}

Result<std::vector<TensorInfo>> ListTensors(const ShapeSpec& spec) {
  const ShapeParams& p = spec.params;
  const bool norms = p.ffn_dim > 0 || p.vocab_size > 0;
  TensorList list(spec.names, p.weight_type);
  if (p.vocab_size > 0) list.Matrix("token_embd.weight", {p.vocab_size, p.d_model});
  list.VectorIf(norms, "output_norm.weight", p.d_model);
  if (p.vocab_size > 0 && !p.tied_embeddings)
    list.Matrix("output.weight", {p.vocab_size, p.d_model});
  for (std::int64_t layer = 0; layer < p.layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    list.VectorIf(norms, block + "attn_norm.weight", p.d_model);
    ListAttention(spec, block, list);
    list.VectorIf(p.post_norms, block + "post_attention_norm.weight", p.d_model);
    list.VectorIf(p.ffn_dim > 0, block + "ffn_norm.weight", p.d_model);
    ListFeedForward(spec, block, list);
    list.VectorIf(p.post_norms && p.ffn_dim > 0, block + "post_ffw_norm.weight", p.d_model);
    if (!list.status().ok()) return list.status();
  }
  return list.Take();
}

ModelConfig ConfigOf(const ShapeSpec& spec) {
  const ShapeParams& p = spec.params;
  ModelConfig config;
  config.architecture = spec.architecture;
  config.vocab_size = p.vocab_size;
  config.d_model = p.d_model;
  config.context_length = p.context_length;
  config.tied_embeddings = p.tied_embeddings || p.vocab_size == 0;
  RopeConfig rope;
  rope.rotary_dim = p.head_dim / 2 * 2;
  config.ropes.assign(static_cast<std::size_t>(spec.num_ropes), rope);
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
    layer.rope = layer.window > 0 ? spec.num_ropes - 1 : 0;
    config.layers.push_back(layer);
  }
  return config;
}

}  // namespace

Result<ModelShape> BuildShape(const ShapeSpec& wanted) {
  ShapeSpec spec = wanted;
  if (Status status = CheckRanges(spec); !status.ok()) return status;
  if (Status status = CompleteHeads(spec); !status.ok()) return status;
  Result<std::vector<TensorInfo>> tensors = ListTensors(spec);
  if (!tensors.ok()) return tensors.status();
  ModelShape shape;
  shape.config = ConfigOf(spec);
  shape.tensors = *std::move(tensors);
  shape.experts_per_token = spec.experts_per_token;
  return shape;
}

Result<ModelShape> MakeModelShape(const ShapeParams& params) {
  ShapeSpec spec;
  spec.params = params;
  return BuildShape(spec);
}

}  // namespace manyhead
