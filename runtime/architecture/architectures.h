#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "manyhead/model_config.h"

namespace manyhead {

/// Says which layers have a window where config.json names one but does not list these layers.
enum class WindowRule : std::uint8_t {
  kNone,      ///< the family has no windows
  kAll,       ///< every layer
  kSwitched,  ///< layers from max_window_layers on, if use_sliding_window
  kPattern,   ///< all layers but every n-th
};

/// Says which names config.json gives to the keys of experts.
enum class ExpertKeys : std::uint8_t { kNone, kLocal, kMoe };

/// Says how a family's files store queries, keys and values.
enum class ProjectionLayout : std::uint8_t {
  kSeparate,     ///< three matrices
  kFused,        ///< one matrix: rows of queries, then of keys, then of values
  kFusedByHead,  ///< one matrix: for each head its query, its key and its value
  kFusedGate,    ///< as kFused, and the feed-forward's gate and up as one, in this order
};

/// Says how safetensors files name their tensors; see TensorRow.
enum class HfNames : std::uint8_t { kLlama, kGemma, kGpt2, kPhi3, kNeox };

/// The defaults of Hugging Face's config class for absent keys. A nested config.json
/// ("text_config") omits values that equal them. 0 = the class has no default of its own.
struct HfDefaults {
  std::int64_t d_model, layers, heads, kv_heads, ffn, vocab, context;
};

/// One family of models: the facts that its files do not state. Loader, planner and config.json
/// reader all use this table.
struct Architecture {
  std::string_view gguf;  ///< general.architecture; empty: only the planner knows the family
  std::string_view hf;    ///< model_type of config.json; empty: it has no config.json of its own
  std::string_view hf_outer;  ///< model_type of such a decoder with parts for other inputs

  NormKind norm = NormKind::kRms;
  bool pre_norms = true;
  bool qk_norm = false;
  bool qk_norm_whole = false;
  bool post_norms = false;
  FeedForwardKind feed_forward = FeedForwardKind::kGated;
  Activation activation = Activation::kSilu;
  PositionKind positions = PositionKind::kRotary;
  bool interleaved_rope = false;  ///< order in which GGUF files store the rows of queries and keys
  bool scaled_embedding = false;  ///< embedding rows are multiplied by sqrt(d_model)
  float attention_softcap = 0;    ///< default where the file does not state it
  float logit_softcap = 0;
  bool sinks = false;  ///< a learned logit of each head joins the softmax

  /// Attention and feed-forward read the same activations: default of use_parallel_residual.
  bool parallel = false;

  /// Every product has a bias; otherwise GGUF files may have those of attention.
  bool biases = false;
  bool hf_qkv_bias = false;  ///< queries, keys and values have biases, the output none, whatever
                             ///< attention_bias says
  ProjectionLayout projections = ProjectionLayout::kSeparate;     ///< layout in GGUF files
  ProjectionLayout hf_projections = ProjectionLayout::kSeparate;  ///< layout in safetensors files

  std::int64_t window = 0;          ///< default where a GGUF file does not state it
  std::int64_t window_pattern = 0;  ///< every n-th layer sees all; 0 = no such rule
  bool local_rope = false;          ///< layers with a window have a rotary base of their own
  std::int64_t odd_scale_layers =
      0;  ///< a model of so many layers scales scores by d_model / heads

  HfNames names = HfNames::kLlama;
  WindowRule hf_windows = WindowRule::kNone;
  ExpertKeys experts = ExpertKeys::kNone;
  bool hf_tied = false;            ///< default of tie_word_embeddings
  bool hf_norms_less_one = false;  ///< files hold the scales of norms less 1
  double hf_norm_eps = 1e-6;       ///< default of the epsilon of norms
  double hf_rope_base = 10000;     ///< default of rope_theta
  double hf_rotary_part = 1;       ///< default of partial_rotary_factor
  double hf_query_scalar = 0;      ///< default of query_pre_attn_scalar; 0 = no such key
  std::int64_t hf_head_dim = 0;    ///< default of the key; 0 = hidden_size / heads
  std::int64_t hf_window = 0;      ///< default of sliding_window in a nested config.json
  HfDefaults hf_defaults = {};
};

/// Returns every family, in the order in which messages list them.
std::span<const Architecture> Architectures() noexcept;

/// Return the families that GGUF files may name, "llama, qwen2, ...", and those of config.json.
std::string GgufArchitectureNames();
std::string HfArchitectureNames();

/// Return null when no family has that name.
const Architecture* FindGgufArchitecture(std::string_view name) noexcept;
const Architecture* FindHfArchitecture(std::string_view model_type) noexcept;

/// Returns a config with the values that the family fixes.
ModelConfig ConfigOf(const Architecture& architecture);

}  // namespace manyhead
