#include "runtime/architecture/hf_keys.h"

namespace manyhead::hf_keys {
namespace {

constexpr std::string_view kUsed[] = {
    "model_type",
    "text_config",
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "n_inner",
    "moe_intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "layer_types",
    "max_window_layers",
    "use_sliding_window",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "decoder_sparse_step",
    "mlp_only_layers",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "layer_norm_eps",
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "rotary_pct",
    "rotary_emb_base",
    "use_parallel_residual",
};

constexpr std::string_view kNumbers = "it changes numbers, but no size";
constexpr std::string_view kTraining = "it matters to training alone";
constexpr std::string_view kTokens = "it names tokens";
constexpr std::string_view kOutputs = "it chooses what a call returns";

constexpr Harmless kHarmless[] = {
    {"initial_context_length", kNumbers},
    {"reorder_and_upcast_attn", kNumbers},
    {"swiglu_limit", kNumbers},
    {"norm_topk_prob", kNumbers},
    {"initializer_range", kTraining},
    {"attention_dropout", kTraining},
    {"hidden_dropout", kTraining},
    {"classifier_dropout", kTraining},
    {"resid_pdrop", kTraining},
    {"embd_pdrop", kTraining},
    {"attn_pdrop", kTraining},
    {"router_aux_loss_coef", kTraining},
    {"router_jitter_noise", kTraining},
    {"pretraining_tp", kTraining},
    {"output_router_logits", kOutputs},
    {"output_attentions", kOutputs},
    {"output_hidden_states", kOutputs},
    {"use_cache", kOutputs},
    {"cache_implementation", kOutputs},
    {"bos_token_id", kTokens},
    {"eos_token_id", kTokens},
    {"pad_token_id", kTokens},
    {"architectures", "model_type says it"},
    {"transformers_version", "it tells who wrote the file"},
    {"summary_type", "it describes heads for classification"},
};

constexpr std::string_view kRefused[] = {
    "is_encoder_decoder",
    "add_cross_attention",
    "use_bidirectional_attention",
    "pruned_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "num_kv_shared_layers",
    "num_nextn_predict_layers",
};

}  // namespace

std::span<const std::string_view> Used() noexcept { return kUsed; }
std::span<const Harmless> HarmlessKeys() noexcept { return kHarmless; }
std::span<const std::string_view> RefusedKeys() noexcept { return kRefused; }

}  // namespace manyhead::hf_keys
