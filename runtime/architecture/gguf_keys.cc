#include "runtime/architecture/gguf_keys.h"

namespace manyhead::gguf_keys {
namespace {

constexpr std::string_view kUsed[] = {kBlockCount,
                                      kContextLength,
                                      kEmbeddingLength,
                                      kFeedForwardLength,
                                      kHeadCount,
                                      kHeadCountKv,
                                      kKeyLength,
                                      kValueLength,
                                      kRmsEpsilon,
                                      kLayerEpsilon,
                                      kAttentionScale,
                                      kCausal,
                                      kWindow,
                                      kWindowPattern,
                                      kAttentionSoftcap,
                                      kLogitSoftcap,
                                      kExpertCount,
                                      kRopeDimensions,
                                      kRopeBase,
                                      kRopeLocalBase,
                                      kRopeScaleLinear,
                                      kRopeScaling,
                                      kRopeFactor,
                                      kRopeOriginalContext,
                                      kRopeAttentionFactor,
                                      kRopeBetaFast,
                                      kRopeBetaSlow};

constexpr std::string_view kOfExperts = "it describes experts, and a model with experts is refused";
constexpr std::string_view kOfEmbeddings =
    "it says how embeddings are pooled, not how tokens follow";

constexpr Harmless kHarmless[] = {
    {"vocab_size", "the rows of the embedding say it"},
    {"rope.scaling.finetuned", "it tells how the model was trained"},
    {"tensor_data_layout", "it names the order of rows that all files of the family have"},
    {"expert_used_count", kOfExperts},
    {"expert_shared_count", kOfExperts},
    {"expert_feed_forward_length", kOfExperts},
    {"expert_shared_feed_forward_length", kOfExperts},
    {"expert_weights_scale", kOfExperts},
    {"expert_weights_norm", kOfExperts},
    {"expert_gating_func", kOfExperts},
    {"expert_group_count", kOfExperts},
    {"expert_group_used_count", kOfExperts},
    {"leading_dense_block_count", kOfExperts},
    {"moe_every_n_layers", kOfExperts},
    {"interleave_moe_layer_step", kOfExperts},
    {"pooling_type", kOfEmbeddings},
    {"classifier.output_labels", "it names the outputs of a tensor that is refused"},
    {"decoder_start_token_id", "it begins the output of models with an encoder, which are refused"},
};

constexpr Refused kRefused[] = {
    {"attention.max_alibi_bias"},
    {"attention.clamp_kqv"},
    {"attention.chunk_size"},
    {"attention.temperature_length"},
    {"attention.temperature_scale"},
    {"attention.output_scale", 1},
    {"attention.value_scale", 1},
    {"attention.shared_kv_layers"},
    {"attention.key_length_swa"},
    {"attention.value_length_swa"},
    {"attention.key_length_mla"},
    {"attention.value_length_mla"},
    {"attention.q_lora_rank"},
    {"attention.kv_lora_rank"},
    {"attention.relative_buckets_count"},
    {"attention.group_norm_groups"},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"logit_scale", 1},
    {"swin_norm"},
    {"use_parallel_residual"},
    {"nextn_predict_layers"},
    {"rescale_every_n_layers"},
    {"rope.dimension_sections"},
    {"rope.scaling.yarn_log_multiplier"},
    {"rope.scaling.yarn_ext_factor", 1, -1},  // -1: the type of scaling decides
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.alpha"},
};

}  // namespace

std::span<const std::string_view> Used() noexcept { return kUsed; }
std::span<const Harmless> HarmlessKeys() noexcept { return kHarmless; }
std::span<const Refused> RefusedKeys() noexcept { return kRefused; }

}  // namespace manyhead::gguf_keys
