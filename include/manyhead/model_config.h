#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/kinds.h"
#include "manyhead/rope.h"

/// What a model computes: everything that its metadata say about its layers.

namespace MANYHEAD_API manyhead {

/// What the feed-forward block of a layer reads.
enum class ResidualKind : std::uint8_t {
  kSequential,  ///< the residual stream after attention was added
  kParallel,    ///< the residual stream before: attention and feed-forward are added together
};

/// How a layer knows where a token stands.
enum class PositionKind : std::uint8_t {
  kRotary,   ///< queries and keys are rotated by LayerConfig::rope
  kLearned,  ///< a row of a table is added to each token's embedding; nothing is rotated
};

/// The shape of one decoder layer.
struct LayerConfig {
  std::int64_t num_heads = 0;     ///< H
  std::int64_t num_kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;      ///< D
  std::int64_t head_dim_v = 0;    ///< D of values
  std::int64_t ffn_dim = 0;       ///< F, rows of gate and up; 0 = no feed-forward block
  std::int64_t window = 0;        ///< tokens a query sees including itself; 0 = all
  int rope = 0;                   ///< index into ModelConfig::ropes
};

/// Everything that the layer loop needs to know about a model. What a layer does not have is a
/// value here, and a family of models is a choice of values, not code.
struct ModelConfig {
  std::string architecture;         ///< as GGUF names it: "llama", "qwen2", "gemma3"
  std::string name;                 ///< from the metadata; may be empty
  std::int64_t vocab_size = 0;      ///< rows of the embedding
  std::int64_t d_model = 0;         ///< elements of a token between layers
  std::int64_t context_length = 0;  ///< tokens the model was trained for

  NormKind norm = NormKind::kRms;  ///< before attention, before feed-forward and after the layers
  float norm_eps = 1e-5F;          ///< of all norms
  bool qk_norm = false;            ///< every query and key head is normalised before rotation
  bool post_norms = false;  ///< attention's and feed-forward's outputs are normalised before adding

  ResidualKind residual = ResidualKind::kSequential;       ///< in all layers
  FeedForwardKind feed_forward = FeedForwardKind::kGated;  ///< in all layers
  Activation activation = Activation::kSilu;               ///< of feed-forward

  PositionKind positions = PositionKind::kRotary;  ///< of tokens
  std::int64_t num_positions = 0;  ///< rows of the table of learned positions; 0 = no table
  bool causal = true;              ///< a query sees no key after itself
  bool attention_sinks = false;    ///< a learned logit of each head joins the softmax

  std::int64_t num_experts = 0;  ///< feed-forward blocks of a layer; 0 = one, without a router
  std::int64_t experts_per_token = 0;  ///< of these, how many a token goes through

  float embedding_scale = 1;  ///< factor on embedding rows
  float softmax_scale = 0;    ///< factor on the products of queries and keys; 0 = 1/sqrt(head_dim)
  float attention_softcap = 0;  ///< of these products; 0 = off
  float logit_softcap = 0;      ///< of the output logits; 0 = off

  bool qkv_bias = false;         ///< queries, keys and values have biases
  bool output_bias = false;      ///< attention's output has a bias
  bool ffn_bias = false;         ///< the feed-forward products have biases
  bool tied_embeddings = false;  ///< the output matrix is the embedding

  std::vector<RopeConfig> ropes;    ///< rotary embeddings that layers choose from
  std::vector<LayerConfig> layers;  ///< from the embedding to the output
};

}  // namespace manyhead
