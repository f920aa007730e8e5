#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

/// What a model takes, before any of it is loaded: parameters, floating-point operations and bytes,
/// by layer and by head.

namespace MANYHEAD_API manyhead {

/// A model as far as its sizes go: every tensor with its shape and type, but none of its numbers.
struct ModelShape {
  ModelConfig config;               ///< as Model::config gives it
  std::vector<TensorInfo> tensors;  ///< named as in GGUF files: "blk.0.attn_q.weight"
  std::string quantization;  ///< how a config.json says that matrices are stored; empty: as typed
  std::int64_t metadata_bytes = 0;   ///< of the model file before its tensors; 0 without a file
  std::int64_t tokenizer_bytes = 0;  ///< of the tokenizer once loaded; 0 without a file
};

/// A decoder of equal layers. As it stands it is one layer of multi-head attention and nothing
/// else: with ffn_dim come feed-forward blocks, with vocab_size embedding and output logits, with
/// either of them norms.
struct ShapeParams {
  std::int64_t d_model = 0;         ///< elements of a token between layers
  std::int64_t num_heads = 0;       ///< H
  std::int64_t num_kv_heads = 0;    ///< K; 0 = H
  std::int64_t head_dim = 0;        ///< D; 0 = d_model / H, which has to be whole
  std::int64_t head_dim_v = 0;      ///< 0 = D
  std::int64_t layers = 1;          ///< equal ones
  std::int64_t ffn_dim = 0;         ///< of gated blocks, three matrices each; 0 = none
  std::int64_t vocab_size = 0;      ///< 0 = neither embedding nor output
  std::int64_t context_length = 0;  ///< tokens the model is made for; 0 = 8192
  std::int64_t window = 0;          ///< tokens a query sees, itself included; 0 = all
  std::int64_t window_pattern = 0;  ///< every n-th layer sees all; 0 = the window is every layer's
  bool tied_embeddings = false;     ///< the output matrix is the embedding, counted once
  bool qkv_bias = false;            ///< of queries, keys and values
  bool output_bias = false;         ///< of attention
  bool qk_norm = false;             ///< a norm of every query and key head
  bool post_norms = false;  ///< two norms more in each layer, after attention and feed-forward
  WeightType weight_type = WeightType::kF16;  ///< of matrices; vectors are f32
};

/// Errors   kInvalidArgument, naming what is out of range, or two values that do not go together.
Result<ModelShape> MakeModelShape(const ShapeParams& params);

/// From the text of a Hugging Face config.json: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe,
/// gemma, gemma2, gemma3, gemma3_text, phi3, gpt_oss and gpt2. Matrices are of `weight_type`, by
/// default what the text names as dtype, else f16; with neither, a quantization_config gives their
/// bytes. Errors   kInvalidArgument naming the key, what it holds and what was expected;
/// kUnsupported
///          naming a model_type that is none of these.
Result<ModelShape> ParseModelShape(std::string_view json,
                                   std::optional<WeightType> weight_type = std::nullopt);

/// From the metadata of a GGUF file. Its tensors are not read, its tokenizer is.
/// Errors   as Model::Load.
Result<ModelShape> ReadModelShape(const std::string& path);

/// Writes a GGUF file of `shape` to `path`, with random weights of a size that keeps activations
/// where a trained model's are, and a tokenizer of a handful of tokens. The same shape gives the
/// same file.
/// Errors   kUnsupported naming what this version's layer loop does not run; kIoError.
Status WriteRandomModel(const ModelShape& shape, const std::string& path);

/// What PlanMemory plans for.
struct MemoryOptions {
  /// Context, types and policies of the cache, chunk, threads, ISA. The context is taken to be
  /// full, reached in steps of `chunk`. kv_budget_bytes is ignored.
  SessionOptions session;
  std::int64_t batch = 1;  ///< B, sequences of `context` tokens each, in one cache
  WeightStorage weights = WeightStorage::kPacked;  ///< where low-bit weights will be
  bool score = false;  ///< Session::Score runs, which holds the logits of 32 tokens
};

/// Floating-point operations, 2 for each multiplication with its addition; softmax, norms and
/// activations are not counted.
struct FlopCount {
  std::int64_t projections = 0;   ///< of queries, keys, values and attention's output
  std::int64_t scores = 0;        ///< QK^T and PV over every pair of a query and a key
  std::int64_t scores_seen = 0;   ///< the part of them that the causal mask and windows leave
  std::int64_t feed_forward = 0;  ///< of its products with weights
  std::int64_t logits = 0;        ///< of each sequence's last token
  /// All but scores_seen.
  std::int64_t total() const noexcept { return projections + scores + feed_forward + logits; }
};

/// One KV head with the G = H / K query heads that read it.
struct HeadPlan {
  KvHeadParams params;                  ///< its types and policy
  std::int64_t parameters = 0;          ///< its rows of W_q, W_k, W_v, columns of W_o, and biases
  std::int64_t weight_bytes = 0;        ///< of these
  std::int64_t kv_bytes_per_token = 0;  ///< while it holds the token: of whole pages, rounded up
  std::int64_t kv_bytes = 0;            ///< of its pages
  std::int64_t kv_tokens = 0;           ///< held of each sequence
  FlopCount flops;                      ///< of all tokens, without feed-forward and logits
};

/// One layer, over all its heads.
struct LayerPlan {
  std::int64_t parameters = 0;             ///< of all its tensors
  std::int64_t projection_parameters = 0;  ///< of W_q, W_k, W_v, W_o, without biases
  std::int64_t weight_bytes = 0;           ///< of all its tensors
  std::int64_t kv_bytes_per_token = 0;     ///< while all heads hold it
  std::int64_t kv_bytes = 0;               ///< of its heads' pages
  std::int64_t score_matrix_bytes = 0;     ///< B * H * T * T in f32, were it ever stored
  FlopCount flops;                         ///< of all tokens
  std::vector<HeadPlan> heads;             ///< [K]
};

/// What a model takes, as exactly as PlanMemory says.
struct MemoryPlan {
  SessionOptions session;  ///< with all defaults filled in
  std::int64_t batch = 1;  ///< B, sequences

  std::int64_t parameters = 0;             ///< shared embeddings once
  std::int64_t projection_parameters = 0;  ///< of W_q, W_k, W_v, W_o in all layers
  /// Of tensors, as they are stored.
  std::int64_t weight_bytes = 0;

  /// What `context` tokens of every sequence hold, after a last eviction: KvUsage::used_bytes.
  std::int64_t kv_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;  ///< KvCache::bytes_per_token
  /// KvUsage::table_bytes. Heads with a budget: at most, for how their tables grow depends on
  /// scores.
  std::int64_t kv_table_bytes = 0;
  /// Of pages and tables, the most on the way: KvCapacityBytes.
  std::int64_t kv_peak_bytes = 0;
  std::int64_t scratch_bytes = 0;  ///< Session::scratch_bytes

  // What else is resident.
  std::int64_t packed_bytes = 0;     ///< weights copied side by side: Model::packed_bytes
  std::int64_t mapped_bytes = 0;     ///< weights read in the file's pages, with the file's metadata
  std::int64_t vector_bytes = 0;     ///< norms and biases as f32
  std::int64_t tokenizer_bytes = 0;  ///< of its tables
  std::int64_t process_bytes = 0;    ///< code, libraries and stacks: the same for every model

  /// The most this process is going to have resident: what is resident of weights, kv_peak_bytes,
  /// scratch_bytes, tokenizer_bytes and process_bytes.
  std::int64_t total_bytes = 0;

  std::int64_t score_matrix_bytes = 0;  ///< of one layer, the largest
  FlopCount flops;                      ///< to evaluate B prompts of `context` tokens
  FlopCount decode_flops;               ///< of the last token of each sequence alone
  std::vector<LayerPlan> layers;        ///< in the model's order
  /// Head dimensions outside 64..128, where accuracy or speed suffers; architectures that only the
  /// planner knows.
  std::vector<std::string> warnings;
};

/// Exact to the byte where a member names what it equals, for the instruction set and the number of
/// threads of this machine.
/// Errors   kInvalidArgument naming what is out of range, e.g. more than 2^63 - 1 bytes.
Result<MemoryPlan> PlanMemory(const ModelShape& shape, const MemoryOptions& options);

}  // namespace manyhead
