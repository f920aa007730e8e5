#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/kinds.h"
#include "manyhead/rope.h"

/// Describes what a model computes: everything that its metadata says about its layers.

namespace MANYHEAD_API manyhead {

/// Says what the feed-forward block of a layer reads.
enum class ResidualKind : std::uint8_t {
  kSequential,  ///< the residual stream after the output of attention has been added
  kParallel,    ///< the residual stream before attention: both outputs are added together
};

/// Says how a layer takes account of the positions of tokens.
enum class PositionKind : std::uint8_t {
  kRotary,   ///< queries and keys are rotated by LayerConfig::rope
  kLearned,  ///< a row of a table is added to each token's embedding; nothing is rotated
};

/// The shape of one decoder layer.
struct LayerConfig {
  std::int64_t num_heads = 0;     ///< H
  std::int64_t num_kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;      ///< D
  std::int64_t head_dim_v = 0;    ///< elements of a value
  std::int64_t ffn_dim = 0;       ///< F, rows of gate and up; 0 = no feed-forward block
  std::int64_t window = 0;        ///< tokens that a query sees, itself included; 0 = all
  int rope = 0;                   ///< index into ModelConfig::ropes
};

/// Everything that the layer loop needs to know about a model. A part that a model lacks is a value
/// here too: families of models differ in values, not in code.
struct ModelConfig {
  std::string architecture;         ///< as GGUF names it: "llama", "qwen2", "gemma3"
  std::string name;                 ///< name in the metadata; may be empty
  std::int64_t vocab_size = 0;      ///< rows of the embedding
  std::int64_t d_model = 0;         ///< elements of a token between layers
  std::int64_t context_length = 0;  ///< tokens that the model was trained for

  NormKind norm = NormKind::kRms;  ///< before attention, before feed-forward and after the layers
  float norm_eps = 1e-5F;          ///< eps of all norms
  bool pre_norms = true;  ///< false: attention and feed-forward read the residual stream as it is
  bool qk_norm = false;   ///< every query and key head is normalised before rotation
  bool qk_norm_whole = false;  ///< all query heads of a token are normalised as one row, and so are
                               ///< all key heads
  /// Outputs of attention and feed-forward are normalised before they are added.
  bool post_norms = false;

  ResidualKind residual = ResidualKind::kSequential;       ///< the same in all layers
  FeedForwardKind feed_forward = FeedForwardKind::kGated;  ///< the same in all layers
  Activation activation = Activation::kSilu;  ///< activation of the feed-forward blocks

  PositionKind positions = PositionKind::kRotary;  ///< use of positions in all layers
  std::int64_t num_positions = 0;  ///< rows of the table of learned positions; 0 = no table
  bool causal = true;              ///< a query sees no key after itself
  bool attention_sinks = false;    ///< a learned logit of each head joins the softmax

  std::int64_t num_experts = 0;  ///< feed-forward blocks of a layer; 0 = one, without a router
  std::int64_t experts_per_token = 0;  ///< blocks that each token passes through

  float embedding_scale = 1;  ///< factor on embedding rows
  float softmax_scale = 0;    ///< factor on the products of queries and keys; 0 = 1/sqrt(head_dim)
  float attention_softcap = 0;  ///< soft-cap of these products; 0 = off
  float logit_softcap = 0;      ///< soft-cap of the output logits; 0 = off

  bool qkv_bias = false;         ///< queries, keys and values have biases
  bool output_bias = false;      ///< the output of attention has a bias
  bool ffn_bias = false;         ///< the feed-forward products have biases
  bool tied_embeddings = false;  ///< the output matrix is the embedding

  std::vector<RopeConfig> ropes;    ///< rotary embeddings; LayerConfig::rope selects one
  std::vector<LayerConfig> layers;  ///< layers from the embedding to the output
};

}  // namespace manyhead
