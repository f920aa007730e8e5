#pragma once

#include <memory>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/tokenizer.h"
#include "runtime/architecture/architectures.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/linear/linear.h"
#include "runtime/model/place_tensors.h"
#include "runtime/platform/memory.h"

namespace manyhead {

/// A norm's parameters, widened to f32.
struct NormWeights {
  NormKind kind = NormKind::kNone;  ///< kNone: the layer has no such norm, and both are empty
  std::vector<float> scale;
  std::vector<float> shift;  ///< [n] in kLayer
};

/// The weights of one decoder layer. ModelConfig says which of them a model has.
struct LayerWeights {
  NormWeights attention_norm, query_norm, key_norm, post_attention_norm;
  NormWeights ffn_norm, post_ffn_norm;
  std::vector<float> query_bias, key_bias, value_bias;  ///< present with ModelConfig::qkv_bias
  std::vector<float> output_bias;                       ///< present with ModelConfig::output_bias
  std::vector<float> gate_bias, up_bias, down_bias;     ///< present with ModelConfig::ffn_bias
  WeightView query, key, value, output;  ///< [H*D, d], [K*D, d], [K*Dv, d], [d, H*Dv]
  WeightView gate, up, down;             ///< [F, d] in gated blocks, [F, d], [d, F]
};

struct ModelWeights {
  WeightView embedding;  ///< [vocab, d]
  WeightView positions;  ///< [num_positions, d] with PositionKind::kLearned
  WeightView head;       ///< [vocab, d]: output logits; the embedding when tied
  NormWeights final_norm;
  std::vector<LayerWeights> layers;
};

/// Lets the weights of a model of `config` point to tensors that RewriteTensors made readable.
ModelWeights BindWeights(const std::vector<PlacedTensor>& tensors, const ModelConfig& config);

/// Copies the matrices of `weights` that gain from it into packed ones, on `threads` threads, and
/// points `weights` there. What was read is dropped from the memory of `file` and from `rewritten`.
/// Errors   kUnsupported when the operating system gives no memory.
Result<ReservedMemory> PackWeights(const Checkpoint& file, ReservedMemory& rewritten,
                                   ModelWeights& weights, int threads);

struct Model::Impl {
  std::unique_ptr<const Checkpoint> file;
  ModelConfig config;
  ModelWeights weights;
  ReservedMemory rewritten, packed;  ///< memory that weights point to, besides the file
  std::vector<TensorInfo> tensors;   ///< in the order of the file
  Tokenizer tokenizer;
};

}  // namespace manyhead
