#include "runtime/architecture/tensor_table.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace manyhead {
namespace {

using Role = TensorRole;
using Part = TensorPart;
using Context = TensorContext;
using Shape = std::vector<std::int64_t>;

// These functions say which models have a tensor.

bool HasVocabulary(const Context& c) { return c.config.vocab_size != 0; }
bool HasNorms(const Context& c) { return c.config.norm != NormKind::kNone; }
bool HasPreNorms(const Context& c) { return HasNorms(c) && c.config.pre_norms; }
bool HasShifts(const Context& c) { return c.config.norm == NormKind::kLayer; }
bool HasPreShifts(const Context& c) { return HasShifts(c) && c.config.pre_norms; }
bool HasFfn(const Context& c) { return c.layer.ffn_dim > 0; }
bool IsDense(const Context& c) { return HasFfn(c) && c.config.num_experts == 0; }
bool HasExperts(const Context& c) { return HasFfn(c) && c.config.num_experts > 0; }
bool IsGated(const Context& c) { return c.config.feed_forward == FeedForwardKind::kGated; }
bool IsFused(const Context& c) { return c.projections != ProjectionLayout::kSeparate; }
bool IsFusedGate(const Context& c) { return c.projections == ProjectionLayout::kFusedGate; }
bool IsSeparate(const Context& c) { return !IsFused(c); }
bool HasSeparateBias(const Context& c) { return IsSeparate(c) && c.config.qkv_bias; }
bool HasFusedBias(const Context& c) { return IsFused(c) && c.config.qkv_bias; }
bool HasOutputBias(const Context& c) { return c.config.output_bias; }
bool HasFfnBias(const Context& c) { return IsDense(c) && c.config.ffn_bias; }
bool HasExpertBias(const Context& c) { return HasExperts(c) && c.config.ffn_bias; }
bool HasQkNorm(const Context& c) { return c.config.qk_norm; }
bool HasPostNorms(const Context& c) { return c.config.post_norms; }
bool HasFfnNorm(const Context& c) { return HasPreNorms(c) && HasFfn(c); }

const RopeConfig* FactorsOf(const ModelConfig& config) {
  for (const RopeConfig& rope : config.ropes)
    if (rope.scaling == RopeScaling::kFactors) return &rope;
  return nullptr;
}

bool HasPositions(const Context& c) { return c.config.num_positions > 0; }
bool HasRopeFactors(const Context& c) { return FactorsOf(c.config) != nullptr; }
bool HasHead(const Context& c) { return HasVocabulary(c) && !c.config.tied_embeddings; }
bool Always(const Context&) { return true; }
bool HasSinks(const Context& c) { return c.config.attention_sinks; }
bool HasFfnShift(const Context& c) { return HasFfnNorm(c) && HasShifts(c); }
bool HasGate(const Context& c) { return IsDense(c) && IsGated(c) && !IsFusedGate(c); }
bool HasGateBias(const Context& c) { return HasFfnBias(c) && IsGated(c); }
bool HasPostFfnNorm(const Context& c) { return HasPostNorms(c) && HasFfn(c); }

// These functions return the shapes of tensors.

Shape Width(const Context& c) { return {c.config.d_model}; }
Shape QueryNormWidth(const Context& c) {
  return {c.config.qk_norm_whole ? c.layer.num_heads * c.layer.head_dim : c.layer.head_dim};
}
Shape KeyNormWidth(const Context& c) {
  return {c.config.qk_norm_whole ? c.layer.num_kv_heads * c.layer.head_dim : c.layer.head_dim};
}
Shape FfnWidth(const Context& c) { return {c.layer.ffn_dim}; }
Shape Vocabulary(const Context& c) { return {c.config.vocab_size, c.config.d_model}; }
std::int64_t QueryRows(const Context& c) { return c.layer.num_heads * c.layer.head_dim; }
std::int64_t KeyRows(const Context& c) { return c.layer.num_kv_heads * c.layer.head_dim; }
std::int64_t ValueRows(const Context& c) { return c.layer.num_kv_heads * c.layer.head_dim_v; }
std::int64_t FusedRows(const Context& c) { return QueryRows(c) + KeyRows(c) + ValueRows(c); }
Shape FfnIn(const Context& c) { return {c.layer.ffn_dim, c.config.d_model}; }
/// Returns the shape of up, which lies below the gate where both are one.
Shape UpIn(const Context& c) {
  return {(IsFusedGate(c) ? 2 : 1) * c.layer.ffn_dim, c.config.d_model};
}
Shape ExpertsIn(const Context& c) {
  return {c.config.num_experts, c.layer.ffn_dim, c.config.d_model};
}
Shape ExpertsBias(const Context& c) { return {c.config.num_experts * c.layer.ffn_dim}; }

Shape Positions(const Context& c) { return {c.config.num_positions, c.config.d_model}; }
Shape RopePairs(const Context& c) { return {FactorsOf(c.config)->rotary_dim / 2}; }
Shape FusedIn(const Context& c) { return {FusedRows(c), c.config.d_model}; }
Shape QueryIn(const Context& c) { return {QueryRows(c), c.config.d_model}; }
Shape KeyIn(const Context& c) { return {KeyRows(c), c.config.d_model}; }
Shape ValueIn(const Context& c) { return {ValueRows(c), c.config.d_model}; }
Shape AttentionOut(const Context& c) {
  return {c.config.d_model, c.layer.num_heads * c.layer.head_dim_v};
}
Shape FusedWidth(const Context& c) { return {FusedRows(c)}; }
Shape QueryWidth(const Context& c) { return {QueryRows(c)}; }
Shape KeyWidth(const Context& c) { return {KeyRows(c)}; }
Shape ValueWidth(const Context& c) { return {ValueRows(c)}; }
Shape Heads(const Context& c) { return {c.layer.num_heads}; }
Shape RouterIn(const Context& c) { return {c.config.num_experts, c.config.d_model}; }
Shape FfnOut(const Context& c) { return {c.config.d_model, c.layer.ffn_dim}; }
Shape ExpertsOut(const Context& c) {
  return {c.config.num_experts, c.config.d_model, c.layer.ffn_dim};
}
Shape Experts(const Context& c) { return {c.config.num_experts}; }
Shape ExpertsOutBias(const Context& c) { return {c.config.num_experts * c.config.d_model}; }

// clang-format off
constexpr TensorRow kRows[] = {
    {Role::kEmbedding, Part::kMatrix, "token_embd.weight", "model.embed_tokens.weight", {},
     "transformer.wte.weight", {}, "gpt_neox.embed_in.weight", HeadAxis::kNone, HasVocabulary,
     Vocabulary},
    {Role::kPositions, Part::kMatrix, "position_embd.weight", {}, {}, "transformer.wpe.weight", {},
     {}, HeadAxis::kNone, HasPositions, Positions},
    {Role::kRopeFactors, Part::kValues, "rope_freqs.weight", {}, {}, {}, {}, {}, HeadAxis::kNone,
     HasRopeFactors, RopePairs},
    {Role::kFinalNorm, Part::kScale, "output_norm.weight", "model.norm.weight", {},
     "transformer.ln_f.weight", {}, "gpt_neox.final_layer_norm.weight", HeadAxis::kNone, HasNorms,
     Width},
    {Role::kFinalNorm, Part::kShift, "output_norm.bias", {}, {}, "transformer.ln_f.bias", {},
     "gpt_neox.final_layer_norm.bias", HeadAxis::kNone, HasShifts, Width},
    {Role::kHead, Part::kMatrix, "output.weight", "lm_head.weight", {}, "lm_head.weight", {},
     "embed_out.weight", HeadAxis::kNone, HasHead, Vocabulary},
    {Role::kAttentionNorm, Part::kScale, "blk.{}.attn_norm.weight",
     "model.layers.{}.input_layernorm.weight", {}, "transformer.h.{}.ln_1.weight", {},
     "gpt_neox.layers.{}.input_layernorm.weight", HeadAxis::kNone, HasPreNorms, Width},
    {Role::kAttentionNorm, Part::kShift, "blk.{}.attn_norm.bias", {}, {},
     "transformer.h.{}.ln_1.bias", {}, "gpt_neox.layers.{}.input_layernorm.bias", HeadAxis::kNone,
     HasPreShifts, Width},
    {Role::kQueryKeyValue, Part::kMatrix, "blk.{}.attn_qkv.weight", {}, {},
     "transformer.h.{}.attn.c_attn.weight", "model.layers.{}.self_attn.qkv_proj.weight",
     "gpt_neox.layers.{}.attention.query_key_value.weight", HeadAxis::kFusedRows, IsFused,
     FusedIn},
    {Role::kQuery, Part::kMatrix, "blk.{}.attn_q.weight",
     "model.layers.{}.self_attn.q_proj.weight", {}, {}, {}, {}, HeadAxis::kQueryRows, IsSeparate,
     QueryIn},
    {Role::kKey, Part::kMatrix, "blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight",
     {}, {}, {}, {}, HeadAxis::kKeyRows, IsSeparate, KeyIn},
    {Role::kValue, Part::kMatrix, "blk.{}.attn_v.weight",
     "model.layers.{}.self_attn.v_proj.weight", {}, {}, {}, {}, HeadAxis::kValueRows, IsSeparate,
     ValueIn},
    {Role::kAttentionOutput, Part::kMatrix, "blk.{}.attn_output.weight",
     "model.layers.{}.self_attn.o_proj.weight", {}, "transformer.h.{}.attn.c_proj.weight", {},
     "gpt_neox.layers.{}.attention.dense.weight", HeadAxis::kOutputColumns, Always, AttentionOut},
    {Role::kQueryKeyValue, Part::kBias, "blk.{}.attn_qkv.bias", {}, {},
     "transformer.h.{}.attn.c_attn.bias", {}, "gpt_neox.layers.{}.attention.query_key_value.bias",
     HeadAxis::kFusedRows, HasFusedBias, FusedWidth},
    {Role::kQuery, Part::kBias, "blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", {},
     {}, {}, {}, HeadAxis::kQueryRows, HasSeparateBias, QueryWidth},
    {Role::kKey, Part::kBias, "blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", {},
     {}, {}, {}, HeadAxis::kKeyRows, HasSeparateBias, KeyWidth},
    {Role::kValue, Part::kBias, "blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", {},
     {}, {}, {}, HeadAxis::kValueRows, HasSeparateBias, ValueWidth},
    {Role::kAttentionOutput, Part::kBias, "blk.{}.attn_output.bias",
     "model.layers.{}.self_attn.o_proj.bias", {}, "transformer.h.{}.attn.c_proj.bias", {},
     "gpt_neox.layers.{}.attention.dense.bias", HeadAxis::kNone, HasOutputBias, Width},
    {Role::kQueryNorm, Part::kScale, "blk.{}.attn_q_norm.weight",
     "model.layers.{}.self_attn.q_norm.weight", {}, {}, {}, {}, HeadAxis::kNone, HasQkNorm,
     QueryNormWidth},
    {Role::kKeyNorm, Part::kScale, "blk.{}.attn_k_norm.weight",
     "model.layers.{}.self_attn.k_norm.weight", {}, {}, {}, {}, HeadAxis::kNone, HasQkNorm,
     KeyNormWidth},
    {Role::kSinks, Part::kValues, "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks",
     {}, {}, {}, {}, HeadAxis::kPerQueryHead, HasSinks, Heads},
    {Role::kPostAttentionNorm, Part::kScale, "blk.{}.post_attention_norm.weight", {},
     "model.layers.{}.post_attention_layernorm.weight", {}, {}, {}, HeadAxis::kNone, HasPostNorms,
     Width},
    {Role::kFfnNorm, Part::kScale, "blk.{}.ffn_norm.weight",
     "model.layers.{}.post_attention_layernorm.weight",
     "model.layers.{}.pre_feedforward_layernorm.weight", "transformer.h.{}.ln_2.weight", {},
     "gpt_neox.layers.{}.post_attention_layernorm.weight", HeadAxis::kNone, HasFfnNorm, Width},
    {Role::kFfnNorm, Part::kShift, "blk.{}.ffn_norm.bias", {}, {}, "transformer.h.{}.ln_2.bias",
     {}, "gpt_neox.layers.{}.post_attention_layernorm.bias", HeadAxis::kNone, HasFfnShift, Width},
    {Role::kRouter, Part::kMatrix, "blk.{}.ffn_gate_inp.weight", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExperts, RouterIn},
    {Role::kGate, Part::kMatrix, "blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight",
     {}, {}, {}, {}, HeadAxis::kNone, HasGate, FfnIn},
    {Role::kUp, Part::kMatrix, "blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", {},
     "transformer.h.{}.mlp.c_fc.weight", "model.layers.{}.mlp.gate_up_proj.weight",
     "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight", HeadAxis::kNone, IsDense, UpIn},
    {Role::kDown, Part::kMatrix, "blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight",
     {}, "transformer.h.{}.mlp.c_proj.weight", {}, "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight",
     HeadAxis::kNone, IsDense, FfnOut},
    {Role::kGate, Part::kBias, "blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", {},
     {}, {}, {}, HeadAxis::kNone, HasGateBias, FfnWidth},
    {Role::kUp, Part::kBias, "blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", {},
     "transformer.h.{}.mlp.c_fc.bias", {}, "gpt_neox.layers.{}.mlp.dense_h_to_4h.bias",
     HeadAxis::kNone, HasFfnBias, FfnWidth},
    {Role::kDown, Part::kBias, "blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", {},
     "transformer.h.{}.mlp.c_proj.bias", {}, "gpt_neox.layers.{}.mlp.dense_4h_to_h.bias",
     HeadAxis::kNone, HasFfnBias, Width},
    {Role::kGateExperts, Part::kMatrix, "blk.{}.ffn_gate_exps.weight", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExperts, ExpertsIn},
    {Role::kUpExperts, Part::kMatrix, "blk.{}.ffn_up_exps.weight", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExperts, ExpertsIn},
    {Role::kDownExperts, Part::kMatrix, "blk.{}.ffn_down_exps.weight", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExperts, ExpertsOut},
    {Role::kRouter, Part::kBias, "blk.{}.ffn_gate_inp.bias", {}, {}, {}, {}, {}, HeadAxis::kNone,
     HasExpertBias, Experts},
    {Role::kGateExperts, Part::kBias, "blk.{}.ffn_gate_exps.bias", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExpertBias, ExpertsBias},
    {Role::kUpExperts, Part::kBias, "blk.{}.ffn_up_exps.bias", {}, {}, {}, {}, {}, HeadAxis::kNone,
     HasExpertBias, ExpertsBias},
    {Role::kDownExperts, Part::kBias, "blk.{}.ffn_down_exps.bias", {}, {}, {}, {}, {},
     HeadAxis::kNone, HasExpertBias, ExpertsOutBias},
    {Role::kPostFfnNorm, Part::kScale, "blk.{}.post_ffw_norm.weight", {},
     "model.layers.{}.post_feedforward_layernorm.weight", {}, {}, {}, HeadAxis::kNone,
     HasPostFfnNorm, Width},
};
// clang-format on

std::string Fill(std::string_view pattern, std::int64_t layer) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return std::string(pattern.substr(0, at))
      .append(std::to_string(layer))
      .append(pattern.substr(at + 2));
}

/// Returns the layer in `name`, where the name is `pattern` filled with a layer.
std::optional<std::int64_t> LayerOf(std::string_view pattern, std::string_view name) noexcept {
  const std::size_t at = pattern.find("{}");
  const std::string_view before = pattern.substr(0, at), after = pattern.substr(at + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after))
    return std::nullopt;
  std::int64_t layer = 0;
  const char* const last = name.data() + name.size() - after.size();
  const auto [end, error] = std::from_chars(name.data() + before.size(), last, layer);
  if (error != std::errc() || end != last || layer < 0) return std::nullopt;
  return layer;
}

}  // namespace

bool TensorRow::transposed(HfNames scheme) const noexcept {
  return scheme == HfNames::kGpt2 && part == TensorPart::kMatrix && per_layer();
}

std::span<const TensorRow> TensorRows() noexcept { return kRows; }

const TensorRow& FindTensorRow(TensorRole role, TensorPart part) noexcept {
  for (const TensorRow& row : kRows)
    if (row.role == role && row.part == part) return row;
  return kRows[0];
}

std::string GgufName(const TensorRow& row, std::int64_t layer) { return Fill(row.gguf, layer); }

std::string GgufName(TensorRole role, TensorPart part) {
  return std::string(FindTensorRow(role, part).gguf);
}

std::string HfName(const TensorRow& row, HfNames scheme, std::int64_t layer) {
  switch (scheme) {
    case HfNames::kGpt2:
      return Fill(row.hf_gpt2, layer);
    case HfNames::kNeox:
      return Fill(row.hf_neox, layer);
    case HfNames::kGemma:
      return Fill(row.hf_gemma.empty() ? row.hf_llama : row.hf_gemma, layer);
    case HfNames::kPhi3:
      return Fill(row.hf_phi3.empty() ? row.hf_llama : row.hf_phi3, layer);
    case HfNames::kLlama:
      break;
  }
  return Fill(row.hf_llama, layer);
}

std::string HfBaseName(const std::string& name) {
  for (const std::string_view prefix : {"model.", "transformer.", "gpt_neox."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

bool IsHfBuffer(std::string_view name) noexcept {
  constexpr std::string_view kBuffers[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                           ".attention.bias", ".attention.masked_bias"};
  return std::any_of(std::begin(kBuffers), std::end(kBuffers),
                     [&](std::string_view one) { return name.ends_with(one); });
}

std::vector<ModelTensor> ListTensors(const ModelConfig& config, ProjectionLayout projections) {
  std::vector<ModelTensor> tensors;
  const LayerConfig none;
  const Context whole{config, config.layers.empty() ? none : config.layers.front(), projections};
  for (const TensorRow& row : kRows)
    if (!row.per_layer() && row.present(whole)) tensors.push_back({&row, -1, row.shape(whole), 0});
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const Context context{config, config.layers[i], projections};
    for (const TensorRow& row : kRows)
      if (row.per_layer() && row.present(context))
        tensors.push_back(
            {&row, static_cast<std::int64_t>(i), row.shape(context), config.layers[i].head_dim});
  }
  return tensors;
}

std::optional<TensorPlace> FindGgufTensor(std::string_view name) noexcept {
  for (const TensorRow& row : kRows) {
    if (!row.per_layer()) {
      if (row.gguf == name) return TensorPlace{&row, -1};
    } else if (const auto layer = LayerOf(row.gguf, name)) {
      return TensorPlace{&row, *layer};
    }
  }
  return std::nullopt;
}

}  // namespace manyhead
