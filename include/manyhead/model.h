#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/kinds.h"
#include "manyhead/rope.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "manyhead/types.h"

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

/// One tensor of a model's file, for reports.
struct TensorInfo {
  std::string name;                    ///< e.g. "blk.0.attn_q.weight"
  WeightType type = WeightType::kF32;  ///< how it is stored
  std::vector<std::int64_t> shape;     ///< outermost first, e.g. [outputs, inputs]
  std::int64_t size_bytes = 0;         ///< as it is stored
};

/// Where a model's low-bit weights are.
enum class WeightStorage : std::uint8_t {
  kPacked,  ///< copied when the model is loaded, rows side by side: the fastest to multiply with
  kMapped,  ///< in the pages of the file, shared between processes: the fastest to load
};

/// How a model is loaded.
struct ModelOptions {
  WeightStorage weights = WeightStorage::kPacked;  ///< of low-bit matrices
  int threads = 0;                                 ///< that pack; 0 = DefaultThreads()
};

/// A model's weights with its config and tokenizer. Immutable; sessions share it.
class Model {
 public:
  /// Reads a GGUF file. Packing copies low-bit matrices and drops the file's pages as it goes, so
  /// that the process holds each weight once; norms and biases are always copied, other matrices
  /// and an embedding that is not the output matrix too stay in the file's pages. Where this CPU
  /// has no kernels for packed weights all stay there. Errors   kIoError for a bad or inconsistent
  /// file, kUnsupported for an architecture, tensor
  ///          type or tokenizer this library does not know; both name the key or tensor and both
  ///          values. kInvalidArgument for a bad option; kUnsupported where the operating system
  ///          does not give the memory.
  static Result<Model> Load(const std::string& path, const ModelOptions& options = {});
  Model(const Model&) noexcept;
  Model& operator=(const Model&) noexcept;
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// What the file says of its shape.
  const ModelConfig& config() const noexcept;
  /// Lives as long as any copy of the model.
  const Tokenizer& tokenizer() const noexcept;
  /// As it was given to Load.
  const std::string& path() const noexcept;
  /// Bytes of all tensors, and those read for each decoded token (no embedding table unless tied).
  std::int64_t weight_bytes() const noexcept;
  /// Bytes of the weights that each decoded token reads.
  std::int64_t weight_bytes_per_token() const noexcept;
  /// Bytes of weights that were packed: memory of this process beside the mapped file.
  std::int64_t packed_bytes() const noexcept;
  /// Elements of all tensors, shared ones once.
  std::int64_t num_parameters() const noexcept;
  /// In the order of the file.
  std::vector<TensorInfo> tensors() const;
  /// The quantisation most weight bytes are stored in, e.g. "Q4_K".
  std::string_view main_weight_type() const noexcept;

  /// For other rooms of this library only: incomplete outside it.
  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Model(std::shared_ptr<const Impl> impl) noexcept;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace manyhead
