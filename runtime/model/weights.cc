#include "runtime/model/weights.h"

#include <set>
#include <sstream>

#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

/// Looks tensors up by name and shape and remembers which were taken and the first that is wrong.
class Binder {
 public:
  explicit Binder(const GgufFile& file) : file_(file) {}

  /// The matrix [rows, cols]; rows = 0 accepts any number.
  WeightView Matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const GgufTensor* tensor = Find(name, rows, cols, /*required=*/true);
    if (tensor == nullptr) return {};
    return {tensor->type, tensor->rows(), tensor->cols(), tensor->data};
  }

  /// The vector [size] as f32; empty when it is absent and not `required`.
  std::vector<float> Vector(const std::string& name, std::int64_t size, bool required) {
    const GgufTensor* tensor = Find(name, 1, size, required);
    if (tensor == nullptr) return {};
    std::vector<float> values(static_cast<std::size_t>(size));
    DequantizeRow({tensor->type, 1, size, tensor->data}, Isa::kScalar, 0, values.data());
    return values;
  }

  /// A norm of `kind`, whose scale is `name`.weight and whose shift is `name`.bias.
  NormWeights Norm(NormKind kind, const std::string& name, std::int64_t size) {
    NormWeights norm{.kind = kind, .scale = {}, .shift = {}};
    if (kind != NormKind::kNone) norm.scale = Vector(name + ".weight", size, true);
    if (kind == NormKind::kLayer) norm.shift = Vector(name + ".bias", size, true);
    return norm;
  }

  /// A bias; zeros where the model has such biases but not this one.
  std::vector<float> Bias(bool present, const std::string& name, std::int64_t size) {
    std::vector<float> values;
    if (present) values = Vector(name, size, false);
    if (present && values.empty()) values.resize(static_cast<std::size_t>(size));
    return values;
  }

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }
  void Skip(std::string_view name) { taken_.insert(name); }
  Status Finish(const char* family) {
    for (const GgufTensor& tensor : file_.tensors())
      if (status_.ok() && taken_.count(tensor.name) == 0)
        status_ = Status(StatusCode::kIoError, "tensor " + Printable(tensor.name) +
                                                   " has no place in architecture " + family);
    return status_;
  }
  const Status& status() const { return status_; }

 private:
  const GgufTensor* Find(const std::string& name, std::int64_t rows, std::int64_t cols,
                         bool required) {
    if (!status_.ok()) return nullptr;
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      if (required) status_ = Status(StatusCode::kIoError, "tensor " + name + " is missing");
      return nullptr;
    }
    if (tensor->cols() != cols || (rows != 0 && tensor->rows() != rows)) {
      std::ostringstream message;
      message << "tensor " << name << " has shape [" << tensor->rows() << ", " << tensor->cols()
              << "]; the metadata ask for [";
      (rows == 0 ? message << "any" : message << rows) << ", " << cols << "]";
      status_ = Status(StatusCode::kIoError, message.str());
      return nullptr;
    }
    taken_.insert(tensor->name);
    return tensor;
  }

  const GgufFile& file_;
  std::set<std::string_view> taken_;
  Status status_;
};

LayerWeights BindLayer(Binder& binder, const ModelConfig& config, std::size_t index) {
  const LayerConfig& layer = config.layers[index];
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d = config.d_model;
  const std::int64_t q_rows = layer.num_heads * layer.head_dim;
  const std::int64_t k_rows = layer.num_kv_heads * layer.head_dim;
  const std::int64_t v_rows = layer.num_kv_heads * layer.head_dim_v;
  LayerWeights w;
  const NormKind head_norm = config.qk_norm ? config.norm : NormKind::kNone;
  const NormKind post_norm = config.post_norms ? config.norm : NormKind::kNone;
  w.attention_norm = binder.Norm(config.norm, block + "attn_norm", d);
  w.query = binder.Matrix(block + "attn_q.weight", q_rows, d);
  w.key = binder.Matrix(block + "attn_k.weight", k_rows, d);
  w.value = binder.Matrix(block + "attn_v.weight", v_rows, d);
  w.output = binder.Matrix(block + "attn_output.weight", d, layer.num_heads * layer.head_dim_v);
  w.query_bias = binder.Bias(config.qkv_bias, block + "attn_q.bias", q_rows);
  w.key_bias = binder.Bias(config.qkv_bias, block + "attn_k.bias", k_rows);
  w.value_bias = binder.Bias(config.qkv_bias, block + "attn_v.bias", v_rows);
  w.output_bias = binder.Bias(config.output_bias, block + "attn_output.bias", d);
  w.query_norm = binder.Norm(head_norm, block + "attn_q_norm", layer.head_dim);
  w.key_norm = binder.Norm(head_norm, block + "attn_k_norm", layer.head_dim);
  w.ffn_norm = binder.Norm(config.norm, block + "ffn_norm", d);
  w.post_attention_norm = binder.Norm(post_norm, block + "post_attention_norm", d);
  w.post_ffn_norm = binder.Norm(post_norm, block + "post_ffw_norm", d);
  w.gate = binder.Matrix(block + "ffn_gate.weight", layer.ffn_dim, d);
  w.up = binder.Matrix(block + "ffn_up.weight", layer.ffn_dim, d);
  w.down = binder.Matrix(block + "ffn_down.weight", d, layer.ffn_dim);
  return w;
}

}  // namespace

Result<ModelWeights> BindWeights(const GgufFile& file, const Family& family, ModelConfig& config) {
  Binder binder(file);
  ModelWeights weights;
  weights.embedding = binder.Matrix("token_embd.weight", 0, config.d_model);
  weights.final_norm = binder.Norm(config.norm, "output_norm", config.d_model);
  if (!binder.status().ok()) return binder.status();
  config.vocab_size = weights.embedding.rows;
  config.tied_embeddings = !binder.Has("output.weight");
  weights.head = config.tied_embeddings
                     ? weights.embedding
                     : binder.Matrix("output.weight", config.vocab_size, config.d_model);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    config.qkv_bias |= binder.Has(block + "attn_q.bias") || binder.Has(block + "attn_k.bias") ||
                       binder.Has(block + "attn_v.bias");
    config.output_bias |= binder.Has(block + "attn_output.bias");
  }
  binder.Skip("rope_freqs.weight");  // read with the config
  for (std::size_t i = 0; i < config.layers.size() && binder.status().ok(); ++i)
    weights.layers.push_back(BindLayer(binder, config, i));
  if (Status status = binder.Finish(family.name); !status.ok()) return status;
  return weights;
}

std::vector<TensorInfo> TensorInfos(const GgufFile& file) {
  std::vector<TensorInfo> infos;
  for (const GgufTensor& tensor : file.tensors()) {
    TensorInfo info{std::string(tensor.name), tensor.type, {}, tensor.size_bytes};
    for (int i = tensor.num_dims; i-- > 0;) info.shape.push_back(tensor.shape[i]);
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace manyhead
