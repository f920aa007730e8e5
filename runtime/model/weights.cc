#include "runtime/model/weights.h"

#include <algorithm>

#include "runtime/architecture/tensor_table.h"

namespace manyhead {
namespace {

WeightView ViewOf(const StoredTensor& tensor) {
  return {tensor.type, tensor.rows(), tensor.cols(), tensor.data};
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

void SplitBias(const std::vector<float>& values, const LayerConfig& shape, LayerWeights& layer) {
  const auto q = values.begin() + shape.num_heads * shape.head_dim;
  const auto k = q + shape.num_kv_heads * shape.head_dim;
  layer.query_bias.assign(values.begin(), q);
  layer.key_bias.assign(q, k);
  layer.value_bias.assign(k, values.end());
}

/// Cuts rows of the gate and, behind them, of up.
void SplitGate(const StoredTensor& tensor, const LayerConfig& shape, LayerWeights& layer) {
  const WeightView all = ViewOf(tensor);
  layer.gate = WeightRows(all, 0, shape.ffn_dim);
  layer.up = WeightRows(all, shape.ffn_dim, shape.ffn_dim);
}

/// Assigns a tensor to the weight that its role names.
void Bind(const PlacedTensor& tensor, const ModelConfig& config, ModelWeights& weights) {
  const ModelTensor& wanted = tensor.wanted;
  const auto index = static_cast<std::size_t>(std::max<std::int64_t>(0, wanted.layer));
  LayerWeights* const layer = wanted.layer < 0 ? nullptr : &weights.layers[index];
  const TensorRole role = wanted.row->role;
  const bool fused = role == TensorRole::kQueryKeyValue;
  switch (wanted.row->part) {
    case TensorPart::kMatrix:
      if (fused)
        SplitMatrix(tensor.stored, config.layers[index], *layer);
      else if (role == TensorRole::kUp && tensor.stored.rows() > config.layers[index].ffn_dim)
        SplitGate(tensor.stored, config.layers[index], *layer);
      else
        *MatrixOf(role, weights, layer) = ViewOf(tensor.stored);
      return;
    case TensorPart::kBias:
      if (fused)
        SplitBias(WidenedTensor(tensor), config.layers[index], *layer);
      else
        *BiasOf(role, *layer) = WidenedTensor(tensor);
      return;
    case TensorPart::kScale:
      *NormOf(role, weights, layer) = {config.norm, WidenedTensor(tensor), {}};
      return;
    case TensorPart::kShift:
      NormOf(role, weights, layer)->shift = WidenedTensor(tensor);
      return;
    case TensorPart::kValues:
      return;  // rotary factors were read with the config
  }
}

/// Fills biases that a file lacks, while it has others of their kind, with zeros.
void FillBiases(const ModelConfig& config, ModelWeights& weights) {
  const auto fill = [](bool wanted, std::int64_t size, std::vector<float>& bias) {
    if (wanted && bias.empty()) bias.resize(static_cast<std::size_t>(size));
  };
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& shape = config.layers[i];
    LayerWeights& layer = weights.layers[i];
    fill(config.qkv_bias, shape.num_heads * shape.head_dim, layer.query_bias);
    fill(config.qkv_bias, shape.num_kv_heads * shape.head_dim, layer.key_bias);
    fill(config.qkv_bias, shape.num_kv_heads * shape.head_dim_v, layer.value_bias);
    fill(config.output_bias, config.d_model, layer.output_bias);
  }
}

}  // namespace

ModelWeights BindWeights(const std::vector<PlacedTensor>& tensors, const ModelConfig& config) {
  ModelWeights weights;
  weights.layers.resize(config.layers.size());
  for (const PlacedTensor& tensor : tensors) Bind(tensor, config, weights);
  FillBiases(config, weights);
  if (config.tied_embeddings) weights.head = weights.embedding;
  return weights;
}

}  // namespace manyhead
