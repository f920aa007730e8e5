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

LayerWeights BindLayer(Binder& binder, const Family& family, const ModelConfig& config,
                       std::size_t index) {
  const LayerConfig& layer = config.layers[index];
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d = config.d_model;
  const std::int64_t q_rows = layer.num_heads * layer.head_dim;
  const std::int64_t k_rows = layer.num_kv_heads * layer.head_dim;
  const std::int64_t v_rows = layer.num_kv_heads * layer.head_dim_v;
  LayerWeights w;
  w.attention_norm = binder.Vector(block + "attn_norm.weight", d, true);
  w.query = binder.Matrix(block + "attn_q.weight", q_rows, d);
  w.key = binder.Matrix(block + "attn_k.weight", k_rows, d);
  w.value = binder.Matrix(block + "attn_v.weight", v_rows, d);
  w.output = binder.Matrix(block + "attn_output.weight", d, layer.num_heads * layer.head_dim_v);
  w.query_bias = binder.Vector(block + "attn_q.bias", q_rows, false);
  w.key_bias = binder.Vector(block + "attn_k.bias", k_rows, false);
  w.value_bias = binder.Vector(block + "attn_v.bias", v_rows, false);
  w.output_bias = binder.Vector(block + "attn_output.bias", d, false);
  if (family.qk_norm) {
    w.query_norm = binder.Vector(block + "attn_q_norm.weight", layer.head_dim, true);
    w.key_norm = binder.Vector(block + "attn_k_norm.weight", layer.head_dim, true);
  }
  w.ffn_norm = binder.Vector(block + "ffn_norm.weight", d, true);
  if (family.post_norms) {
    w.post_attention_norm = binder.Vector(block + "post_attention_norm.weight", d, true);
    w.post_ffn_norm = binder.Vector(block + "post_ffw_norm.weight", d, true);
  }
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
  weights.final_norm = binder.Vector("output_norm.weight", config.d_model, true);
  if (!binder.status().ok()) return binder.status();
  config.vocab_size = weights.embedding.rows;
  config.tied_embeddings = !binder.Has("output.weight");
  weights.head = config.tied_embeddings
                     ? weights.embedding
                     : binder.Matrix("output.weight", config.vocab_size, config.d_model);
  binder.Skip("rope_freqs.weight");  // read with the config
  for (std::size_t i = 0; i < config.layers.size() && binder.status().ok(); ++i)
    weights.layers.push_back(BindLayer(binder, family, config, i));
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
