#include "runtime/model/weights.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "runtime/architecture/tensor_table.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

using Shape = std::vector<std::int64_t>;

/// Looks tensors up by name and shape and records which ones were used and the first error.
class Finder {
 public:
  explicit Finder(const Checkpoint& file) : file_(file) {}

  /// Returns the tensor of that shape, where 0 accepts any size; null when it is absent.
  const StoredTensor* Take(const std::string& name, const Shape& shape, bool required) {
    if (!status_.ok()) return nullptr;
    const StoredTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      if (required) status_ = Status(StatusCode::kIoError, "tensor " + name + " is missing");
      return nullptr;
    }
    const std::int64_t cols = shape.back(), rows = shape.size() == 1 ? 1 : shape.front();
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

  Status Finish(std::string_view architecture) {
    for (const StoredTensor& tensor : file_.tensors())
      if (status_.ok() && taken_.count(tensor.name) == 0)
        status_ = Status(StatusCode::kIoError, "tensor " + Printable(tensor.name) +
                                                   " has no place in architecture " +
                                                   std::string(architecture));
    return status_;
  }
  const Status& status() const { return status_; }

 private:
  const Checkpoint& file_;
  std::set<std::string_view> taken_;
  Status status_;
};

WeightView ViewOf(const StoredTensor& tensor) {
  return {tensor.type, tensor.rows(), tensor.cols(), tensor.data};
}

std::vector<float> Widened(const StoredTensor& tensor) {
  const std::int64_t size = tensor.rows() * tensor.cols();
  std::vector<float> values(static_cast<std::size_t>(size));
  DequantizeRow({tensor.type, 1, size, tensor.data}, Isa::kScalar, 0, values.data());
  return values;
}

NormWeights* NormOf(TensorRole role, ModelWeights& weights, LayerWeights* layer) {
  switch (role) {
    case TensorRole::kFinalNorm:
      return &weights.final_norm;
    case TensorRole::kAttentionNorm:
      return &layer->attention_norm;
    case TensorRole::kQueryNorm:
      return &layer->query_norm;
    case TensorRole::kKeyNorm:
      return &layer->key_norm;
    case TensorRole::kPostAttentionNorm:
      return &layer->post_attention_norm;
    case TensorRole::kFfnNorm:
      return &layer->ffn_norm;
    case TensorRole::kPostFfnNorm:
      return &layer->post_ffn_norm;
    default:
      return nullptr;
  }
}

WeightView* MatrixOf(TensorRole role, ModelWeights& weights, LayerWeights* layer) {
  switch (role) {
    case TensorRole::kEmbedding:
      return &weights.embedding;
    case TensorRole::kPositions:
      return &weights.positions;
    case TensorRole::kHead:
      return &weights.head;
    case TensorRole::kQuery:
      return &layer->query;
    case TensorRole::kKey:
      return &layer->key;
    case TensorRole::kValue:
      return &layer->value;
    case TensorRole::kAttentionOutput:
      return &layer->output;
    case TensorRole::kGate:
      return &layer->gate;
    case TensorRole::kUp:
      return &layer->up;
    case TensorRole::kDown:
      return &layer->down;
    default:
      return nullptr;
  }
}

std::vector<float>* BiasOf(TensorRole role, LayerWeights& layer) {
  switch (role) {
    case TensorRole::kQuery:
      return &layer.query_bias;
    case TensorRole::kKey:
      return &layer.key_bias;
    case TensorRole::kValue:
      return &layer.value_bias;
    case TensorRole::kAttentionOutput:
      return &layer.output_bias;
    case TensorRole::kGate:
      return &layer.gate_bias;
    case TensorRole::kUp:
      return &layer.up_bias;
    case TensorRole::kDown:
      return &layer.down_bias;
    default:
      return nullptr;
  }
}

/// Divides a matrix of rows of queries, keys and values into the three.
void SplitMatrix(const StoredTensor& tensor, const LayerConfig& shape, LayerWeights& layer) {
  const WeightView all = ViewOf(tensor);
  const std::int64_t q = shape.num_heads * shape.head_dim, k = shape.num_kv_heads * shape.head_dim;
  layer.query = WeightRows(all, 0, q);
  layer.key = WeightRows(all, q, k);
  layer.value = WeightRows(all, q + k, all.rows - q - k);
}

void SplitBias(const StoredTensor& tensor, const LayerConfig& shape, LayerWeights& layer) {
  const std::vector<float> all = Widened(tensor);
  const auto q = all.begin() + shape.num_heads * shape.head_dim;
  const auto k = q + shape.num_kv_heads * shape.head_dim;
  layer.query_bias.assign(all.begin(), q);
  layer.key_bias.assign(q, k);
  layer.value_bias.assign(k, all.end());
}

/// Assigns a tensor to the weight that its role names.
void Bind(const ModelTensor& wanted, const StoredTensor& tensor, const ModelConfig& config,
          ModelWeights& weights) {
  const auto index = static_cast<std::size_t>(std::max<std::int64_t>(0, wanted.layer));
  LayerWeights* const layer = wanted.layer < 0 ? nullptr : &weights.layers[index];
  const TensorRole role = wanted.row->role;
  const bool fused = role == TensorRole::kQueryKeyValue;
  switch (wanted.row->part) {
    case TensorPart::kMatrix:
      if (fused)
        SplitMatrix(tensor, config.layers[index], *layer);
      else
        *MatrixOf(role, weights, layer) = ViewOf(tensor);
      return;
    case TensorPart::kBias:
      if (fused)
        SplitBias(tensor, config.layers[index], *layer);
      else
        *BiasOf(role, *layer) = Widened(tensor);
      return;
    case TensorPart::kScale:
      *NormOf(role, weights, layer) = {config.norm, Widened(tensor), {}};
      return;
    case TensorPart::kShift:
      NormOf(role, weights, layer)->shift = Widened(tensor);
      return;
    case TensorPart::kValues:
      return;  // rotary factors were read with the config
  }
}

/// Returns true where any layer has one of the biases.
bool HasBias(const Checkpoint& file, const ModelConfig& config,
             std::initializer_list<TensorRole> roles) {
  for (const TensorRole role : roles)
    for (std::int64_t i = 0; i < std::ssize(config.layers); ++i)
      if (file.FindTensor(GgufName(FindTensorRow(role, TensorPart::kBias), i)) != nullptr)
        return true;
  return false;
}

/// Completes `config` with what follows from the presence and the shapes of tensors.
Status CompleteConfig(const Checkpoint& file, const Architecture& architecture, Finder& finder,
                      ModelConfig& config) {
  const std::string embedding = GgufName(TensorRole::kEmbedding, TensorPart::kMatrix);
  const StoredTensor* table = finder.Take(embedding, {0, config.d_model}, /*required=*/true);
  if (table == nullptr) return finder.status();
  config.vocab_size = table->rows();
  config.tied_embeddings =
      file.FindTensor(GgufName(TensorRole::kHead, TensorPart::kMatrix)) == nullptr;
  if (architecture.biases) return {};
  config.qkv_bias =
      HasBias(file, config, {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue});
  config.output_bias = HasBias(file, config, {TensorRole::kAttentionOutput});
  return {};
}

}  // namespace

Result<ModelWeights> BindWeights(const Checkpoint& file, const Architecture& architecture,
                                 ModelConfig& config) {
  Finder finder(file);
  if (Status status = CompleteConfig(file, architecture, finder, config); !status.ok())
    return status;
  ModelWeights weights;
  weights.layers.resize(config.layers.size());
  for (const ModelTensor& wanted : ListTensors(config, architecture.projections)) {
    // Where an architecture may have a bias and a file has another of its kind, a missing one is 0.
    const bool optional = wanted.row->part == TensorPart::kBias && !architecture.biases;
    const StoredTensor* tensor =
        finder.Take(GgufName(*wanted.row, wanted.layer), wanted.shape, !optional);
    if (tensor != nullptr)
      Bind(wanted, *tensor, config, weights);
    else if (!finder.status().ok())
      return finder.status();
    else
      BiasOf(wanted.row->role, weights.layers[static_cast<std::size_t>(wanted.layer)])
          ->resize(static_cast<std::size_t>(wanted.shape.front()));
  }
  if (config.tied_embeddings) weights.head = weights.embedding;
  if (Status status = finder.Finish(architecture.gguf); !status.ok()) return status;
  return weights;
}

std::vector<TensorInfo> TensorInfos(const Checkpoint& file) {
  std::vector<TensorInfo> infos;
  for (const StoredTensor& tensor : file.tensors()) {
    TensorInfo info{std::string(tensor.name), tensor.type, {}, tensor.size_bytes};
    for (int i = tensor.num_dims; i-- > 0;) info.shape.push_back(tensor.shape[i]);
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace manyhead
