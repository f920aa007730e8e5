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

/// Computes what a model needs before any of it is loaded: parameters, floating-point operations
/// and bytes, by layer and by head.

namespace MANYHEAD_API manyhead {

/// The sizes of a model: every tensor with its shape and type, but none of its numbers.
struct ModelShape {
  ModelConfig config;               ///< as Model::config gives it
  std::vector<TensorInfo> tensors;  ///< named as in GGUF files: "blk.0.attn_q.weight"
  /// Storage of matrices that a config.json names; empty: as `tensors` say.
  std::string quantization;
  /// Bytes of the model file before its tensors; 0 without a file.
  std::int64_t metadata_bytes = 0;
  std::int64_t tokenizer_bytes = 0;  ///< bytes of the loaded tokenizer; 0 without a file
};

/// A decoder of equal layers. With the defaults it is one layer of multi-head attention and nothing
/// else: ffn_dim adds feed-forward blocks, vocab_size adds embedding and output logits, and either
/// of them adds norms.
struct ShapeParams {
  std::int64_t d_model = 0;       ///< elements of a token between layers
  std::int64_t num_heads = 0;     ///< H
  std::int64_t num_kv_heads = 0;  ///< K; 0 = H
  std::int64_t head_dim = 0;      ///< D; 0 = d_model / H, which must be a whole number
  std::int64_t head_dim_v = 0;    ///< 0 = D
  std::int64_t layers = 1;        ///< number of layers, which are all equal
  /// Rows of each of the three matrices of a gated block; 0 = no feed-forward.
  std::int64_t ffn_dim = 0;
  std::int64_t vocab_size = 0;      ///< 0 = neither embedding nor output logits
  std::int64_t context_length = 0;  ///< tokens that the model is made for; 0 = 8192
  std::int64_t window = 0;          ///< tokens a query sees, itself included; 0 = all
  /// Every n-th layer sees all tokens; 0 = the window holds in every layer.
  std::int64_t window_pattern = 0;
  bool tied_embeddings = false;  ///< the output matrix is the embedding, counted once
  bool qkv_bias = false;         ///< queries, keys and values have biases
  bool output_bias = false;      ///< the output of attention has a bias
  bool qk_norm = false;          ///< a norm of every query and key head
  bool post_norms = false;       ///< two more norms in each layer, after attention and feed-forward
  WeightType weight_type = WeightType::kF16;  ///< type of matrices; vectors are f32
};

/// Lists the tensors of such a decoder.
/// Errors   kInvalidArgument, naming what is out of range, or two values that contradict each
///          other.
Result<ModelShape> MakeModelShape(const ShapeParams& params);

/// Reads the shape from the text of a Hugging Face config.json: llama, mistral, mixtral, qwen2,
/// qwen3, qwen3_moe, gemma, gemma2, gemma3, gemma3_text, phi3, gpt_oss and gpt2. Matrices are of
/// `weight_type`; by default of the type that the text names as dtype, else f16; with neither, a
/// quantization_config gives their bytes.
/// Errors   kInvalidArgument naming the key, its value and what was expected; kUnsupported naming a
///          model_type that is none of these.
Result<ModelShape> ParseModelShape(std::string_view json,
                                   std::optional<WeightType> weight_type = std::nullopt);

/// Reads the shape from the metadata of a GGUF file. Its tensors are not read, its tokenizer is.
/// Errors   as Model::Load.
Result<ModelShape> ReadModelShape(const std::string& path);

/// Returns `shape` as llama.cpp's quantiser would store it: each matrix has the type that the mix
/// `name` ("q4_k_m", in any case) gives it by its role, its layer and the length of its rows,
/// without an importance matrix.
/// Errors   kInvalidArgument naming the mix and those that exist.
Result<ModelShape> MixWeightTypes(ModelShape shape, std::string_view name);
/// Returns the names that MixWeightTypes knows: "q2_k", "q2_k_s", ..., "q5_k_m".
std::vector<std::string> WeightMixNames();

/// Writes a GGUF file of `shape` to `path`, with random weights of a size that keeps activations in
/// the range of a trained model, and a tokenizer of a few tokens. The same shape gives the same
/// file.
/// Errors   kUnsupported naming the part that the layer loop of this version does not run;
///          kIoError.
Status WriteRandomModel(const ModelShape& shape, const std::string& path);

/// Says how PlanMemory assumes that the model is used.
struct MemoryOptions {
  /// Context, types and policies of the cache, chunk, threads, ISA. The plan assumes that the
  /// context is full and was filled in steps of `chunk`. kv_budget_bytes is ignored.
  SessionOptions session;
  std::int64_t batch = 1;  ///< B, sequences of `context` tokens each, in one cache
  WeightStorage weights = WeightStorage::kPacked;  ///< where low-bit weights are stored
  bool score = false;  ///< Session::Score runs too; it holds the logits of 32 tokens
};

/// Floating-point operations, 2 for each multiplication with its addition; softmax, norms and
/// activations are not counted.
struct FlopCount {
  std::int64_t projections = 0;  ///< projections of queries, keys, values and attention's output
  /// QK^T and PV over every pair of a query and a key, for heads that are not off.
  std::int64_t scores = 0;
  /// The attended part of them: the causal mask, windows and each head's policy leave it.
  std::int64_t scores_seen = 0;
  std::int64_t feed_forward = 0;  ///< products of the feed-forward part with weights
  std::int64_t logits = 0;        ///< logits of each sequence's last token
  /// The sum of all members but scores_seen.
  std::int64_t total() const noexcept { return projections + scores + feed_forward + logits; }
};

/// One KV head with the G = H / K query heads that read it.
struct HeadPlan {
  KvHeadParams params;            ///< its types and policy
  std::int64_t parameters = 0;    ///< its rows of W_q, W_k, W_v, columns of W_o, and biases
  std::int64_t weight_bytes = 0;  ///< bytes of these weights
  /// Bytes of a token while the head holds it: those of whole pages, rounded up.
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t kv_bytes = 0;   ///< bytes of its pages
  std::int64_t kv_tokens = 0;  ///< tokens held of each sequence
  /// Keys that the last token of each sequence attends to, under policy and window.
  std::int64_t decode_kv_tokens = 0;
  FlopCount flops;  ///< operations for all tokens, without feed-forward and logits
};

/// One layer, over all its heads.
struct LayerPlan {
  std::int64_t parameters = 0;             ///< parameters of all its tensors
  std::int64_t projection_parameters = 0;  ///< parameters of W_q, W_k, W_v, W_o, without biases
  std::int64_t weight_bytes = 0;           ///< bytes of all its tensors
  std::int64_t kv_bytes_per_token = 0;     ///< bytes of a token while all heads hold it
  std::int64_t kv_bytes = 0;               ///< bytes of its heads' pages
  std::int64_t score_matrix_bytes = 0;     ///< B * H * T * T numbers in f32; they are never stored
  FlopCount flops;                         ///< operations for all tokens
  std::vector<HeadPlan> heads;             ///< [K]
};

/// The needs of a model, as exactly as PlanMemory says.
struct MemoryPlan {
  SessionOptions session;  ///< options with all defaults filled in
  std::int64_t batch = 1;  ///< B, sequences

  std::int64_t parameters = 0;             ///< shared embeddings count once
  std::int64_t projection_parameters = 0;  ///< parameters of W_q, W_k, W_v, W_o in all layers
  /// Bytes of all tensors, as they are stored.
  std::int64_t weight_bytes = 0;

  /// Bytes held by `context` tokens of every sequence after a last eviction: KvUsage::used_bytes.
  std::int64_t kv_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;  ///< KvCache::bytes_per_token
  /// KvUsage::table_bytes. With budgets it is an upper bound, since their tables grow with the
  /// scores.
  std::int64_t kv_table_bytes = 0;
  /// The largest number of bytes of pages and tables while the context fills: KvCapacityBytes.
  std::int64_t kv_peak_bytes = 0;
  std::int64_t scratch_bytes = 0;  ///< Session::scratch_bytes

  // Other memory that is resident.
  std::int64_t packed_bytes = 0;     ///< bytes of packed weights: Model::packed_bytes
  std::int64_t mapped_bytes = 0;     ///< bytes of mapped weights, with the file's metadata
  std::int64_t vector_bytes = 0;     ///< bytes of norms and biases as f32
  std::int64_t tokenizer_bytes = 0;  ///< bytes of the tokenizer's tables
  std::int64_t process_bytes = 0;    ///< code, libraries and stacks: the same for every model

  /// Largest resident memory of this process: resident weights, kv_peak_bytes, scratch_bytes,
  /// tokenizer_bytes and process_bytes.
  std::int64_t total_bytes = 0;

  // Bytes that one decode step of all B sequences reads once their contexts are full.
  std::int64_t decode_weight_bytes = 0;  ///< Model::weight_bytes_per_token, read once for the batch
  std::int64_t decode_kv_bytes = 0;      ///< keys and values that the step's queries attend to

  /// Bytes of the score matrix of the layer with the largest one.
  std::int64_t score_matrix_bytes = 0;
  FlopCount flops;                ///< operations that evaluate B prompts of `context` tokens
  FlopCount decode_flops;         ///< operations of the last token of each sequence alone
  std::vector<LayerPlan> layers;  ///< layers in the model's order
  /// Notes on head dimensions outside 64..128, where accuracy or speed suffers, and on
  /// architectures that only the planner knows.
  std::vector<std::string> warnings;
};

/// Computes the needs of a model, exact to the byte where a member names what it equals, for the
/// instruction set and the number of threads of this machine.
/// Errors   kInvalidArgument naming what is out of range, e.g. more than 2^63 - 1 bytes.
Result<MemoryPlan> PlanMemory(const ModelShape& shape, const MemoryOptions& options);

/// Returns the largest context that fits into a memory: the greatest session.context for which
/// PlanMemory(shape, options).total_bytes is at most `bytes`. It is at most 2^31, and at most the
/// number of learned positions. Returns 0 where not even one token fits.
/// Errors   those of PlanMemory; kInvalidArgument for `bytes` below 1.
Result<std::int64_t> LargestContext(const ModelShape& shape, const MemoryOptions& options,
                                    std::int64_t bytes);
/// Returns the greatest batch that fits, at most 2^20, whose sequences hold session.context tokens
/// each, or 0 where not even one sequence fits.
/// Errors   those of LargestContext.
Result<std::int64_t> LargestBatch(const ModelShape& shape, const MemoryOptions& options,
                                  std::int64_t bytes);

}  // namespace manyhead
