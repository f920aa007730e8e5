#include "runtime/architecture/architectures.h"

namespace manyhead {
namespace {

constexpr Architecture kArchitectures[] = {
    {.gguf = "llama",
     .hf = "llama",
     .hf_outer = {},
     .interleaved_rope = true,
     .hf_defaults = {4096, 32, 32, 0, 11008, 32000, 2048}},
    {.gguf = {},  // GGUF files of these models say llama
     .hf = "mistral",
     .hf_outer = {},
     .hf_windows = WindowRule::kAll,
     .hf_window = 4096,
     .hf_defaults = {4096, 32, 32, 8, 14336, 32000, 131072}},
    {.gguf = {},
     .hf = "mixtral",
     .hf_outer = {},
     .hf_windows = WindowRule::kAll,
     .experts = ExpertKeys::kLocal,
     .hf_defaults = {4096, 32, 32, 8, 14336, 32000, 131072}},
    {.gguf = "qwen2",
     .hf = "qwen2",
     .hf_outer = {},
     .hf_qkv_bias = true,
     .hf_windows = WindowRule::kSwitched,
     .hf_window = 4096,
     .hf_defaults = {4096, 32, 32, 32, 22016, 151936, 32768}},
    {.gguf = "qwen3",
     .hf = "qwen3",
     .hf_outer = {},
     .qk_norm = true,
     .hf_windows = WindowRule::kSwitched,
     .hf_head_dim = 128,
     .hf_window = 4096,
     .hf_defaults = {4096, 32, 32, 32, 22016, 151936, 32768}},
    {.gguf = {},
     .hf = "qwen3_moe",
     .hf_outer = {},
     .qk_norm = true,
     .hf_windows = WindowRule::kSwitched,
     .experts = ExpertKeys::kMoe,
     .hf_window = 4096,
     .hf_defaults = {2048, 24, 32, 4, 6144, 151936, 32768}},
    {.gguf = "gemma",
     .hf = "gemma",
     .hf_outer = {},
     .activation = Activation::kGeluTanh,
     .scaled_embedding = true,
     .hf_tied = true,
     .hf_norms_less_one = true,
     .hf_head_dim = 256,
     .hf_defaults = {3072, 28, 16, 16, 24576, 256000, 8192}},
    {.gguf = "gemma2",
     .hf = "gemma2",
     .hf_outer = {},
     .post_norms = true,
     .activation = Activation::kGeluTanh,
     .scaled_embedding = true,
     .attention_softcap = 50,
     .logit_softcap = 30,
     .window = 4096,
     .window_pattern = 2,
     .odd_scale_layers = 46,
     .names = HfNames::kGemma,
     .hf_windows = WindowRule::kPattern,
     .hf_tied = true,
     .hf_norms_less_one = true,
     .hf_query_scalar = 256,
     .hf_head_dim = 256,
     .hf_window = 4096,
     .hf_defaults = {2304, 26, 8, 4, 9216, 256000, 8192}},
    {.gguf = "gemma3",
     .hf = "gemma3_text",
     .hf_outer = "gemma3",
     .qk_norm = true,
     .post_norms = true,
     .activation = Activation::kGeluTanh,
     .scaled_embedding = true,
     .window_pattern = 6,
     .local_rope = true,
     .odd_scale_layers = 62,
     .names = HfNames::kGemma,
     .hf_windows = WindowRule::kPattern,
     .hf_tied = true,
     .hf_norms_less_one = true,
     .hf_rope_base = 1000000,
     .hf_query_scalar = 256,
     .hf_head_dim = 256,
     .hf_window = 4096,
     .hf_defaults = {2304, 26, 8, 4, 9216, 262208, 131072}},
    {.gguf = {},
     .hf = "phi3",
     .hf_outer = {},
     .hf_projections = ProjectionLayout::kFusedGate,
     .names = HfNames::kPhi3,
     .hf_windows = WindowRule::kAll,
     .hf_norm_eps = 1e-5,
     .hf_defaults = {3072, 32, 32, 0, 8192, 32064, 4096}},
    {.gguf = {},
     .hf = "gpt_oss",
     .hf_outer = {},
     .sinks = true,
     .window_pattern = 2,
     .hf_windows = WindowRule::kPattern,
     .experts = ExpertKeys::kLocal,
     .hf_head_dim = 64,
     .hf_window = 128,
     .hf_defaults = {2880, 36, 64, 8, 2880, 201088, 131072}},
    {.gguf = {},
     .hf = "gpt_neox",
     .hf_outer = {},
     .norm = NormKind::kLayer,
     .feed_forward = FeedForwardKind::kPlain,
     .activation = Activation::kGelu,
     .parallel = true,
     .biases = true,
     .hf_projections = ProjectionLayout::kFusedByHead,
     .names = HfNames::kNeox,
     .hf_norm_eps = 1e-5,
     .hf_rotary_part = 0.25,
     .hf_defaults = {6144, 44, 64, 0, 24576, 50432, 2048}},
    {.gguf = {},
     .hf = "olmo2",
     .hf_outer = {},
     .pre_norms = false,
     .qk_norm = true,
     .qk_norm_whole = true,
     .post_norms = true,
     .names = HfNames::kGemma,
     .hf_norm_eps = 1e-5,
     .hf_defaults = {4096, 32, 32, 0, 11008, 50304, 2048}},
    {.gguf = "gpt2",
     .hf = "gpt2",
     .hf_outer = {},
     .norm = NormKind::kLayer,
     .feed_forward = FeedForwardKind::kPlain,
     .activation = Activation::kGeluTanh,
     .positions = PositionKind::kLearned,
     .biases = true,
     .projections = ProjectionLayout::kFused,
     .hf_projections = ProjectionLayout::kFused,
     .names = HfNames::kGpt2,
     .hf_tied = true,
     .hf_norm_eps = 1e-5,
     .hf_defaults = {768, 12, 12, 0, 0, 50257, 1024}},
};

}  // namespace

std::span<const Architecture> Architectures() noexcept { return kArchitectures; }

std::string GgufArchitectureNames() {
  std::string names;
  for (const Architecture& one : kArchitectures)
    if (!one.gguf.empty()) names.append(names.empty() ? "" : ", ").append(one.gguf);
  return names;
}

std::string HfArchitectureNames() {
  std::string names;
  for (const Architecture& one : kArchitectures)
    for (const std::string_view name : {one.hf, one.hf_outer})
      if (!name.empty()) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

const Architecture* FindGgufArchitecture(std::string_view name) noexcept {
  for (const Architecture& one : kArchitectures)
    if (!name.empty() && one.gguf == name) return &one;
  return nullptr;
}

const Architecture* FindHfArchitecture(std::string_view model_type) noexcept {
  for (const Architecture& one : kArchitectures)
    if (!model_type.empty() && (one.hf == model_type || one.hf_outer == model_type)) return &one;
  return nullptr;
}

ModelConfig ConfigOf(const Architecture& architecture) {
  ModelConfig config;
  config.architecture = architecture.gguf.empty() ? architecture.hf : architecture.gguf;
  config.norm = architecture.norm;
  config.pre_norms = architecture.pre_norms;
  config.qk_norm = architecture.qk_norm;
  config.qk_norm_whole = architecture.qk_norm_whole;
  config.residual = architecture.parallel ? ResidualKind::kParallel : ResidualKind::kSequential;
  config.post_norms = architecture.post_norms;
  config.feed_forward = architecture.feed_forward;
  config.activation = architecture.activation;
  config.positions = architecture.positions;
  config.attention_softcap = architecture.attention_softcap;
  config.logit_softcap = architecture.logit_softcap;
  config.attention_sinks = architecture.sinks;
  config.qkv_bias = config.output_bias = config.ffn_bias = architecture.biases;
  return config;
}

}  // namespace manyhead
