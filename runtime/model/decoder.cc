#include "runtime/model/decoder.h"

#include <algorithm>
#include <tuple>

#include "runtime/attention/plan_impl.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/model/decoder_call.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

/// The widest layer in each direction: buffers serve all of them.
struct Widths {
  std::int64_t query = 0, key = 0, value = 0, attended = 0, ffn = 0, most_cols = 0;
};

Widths WidthsOf(const ModelConfig& config) {
  Widths widths;
  for (const LayerConfig& layer : config.layers) {
    widths.query = std::max(widths.query, layer.num_heads * layer.head_dim);
    widths.key = std::max(widths.key, layer.num_kv_heads * layer.head_dim);
    widths.value = std::max(widths.value, layer.num_kv_heads * layer.head_dim_v);
    widths.attended = std::max(widths.attended, layer.num_heads * layer.head_dim_v);
    widths.ffn = std::max(widths.ffn, layer.ffn_dim);
  }
  widths.most_cols = std::max({config.d_model, widths.attended, widths.ffn});
  return widths;
}

/// Elements of all activation buffers for one row.
std::int64_t RowElements(const ModelConfig& config, const Widths& widths) {
  return 3 * config.d_model + widths.query + widths.key + widths.value + widths.attended +
         2 * widths.ffn;
}

LinearLimits LinearLimitsOf(const ModelConfig& config, const DecoderLimits& limits) {
  return {.max_cols = WidthsOf(config).most_cols,
          .max_rows = limits.max_rows,
          .threads = limits.threads,
          .isa = limits.isa,
          .math = limits.math};
}

/// The attention of every distinct layer shape, and which of them each layer has.
struct DistinctPlans {
  std::vector<AttentionParams> params;
  std::vector<std::size_t> index;  // [layer]
};

DistinctPlans PlansOf(const ModelConfig& config, const DecoderLimits& limits) {
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  std::vector<Shape> shapes;
  DistinctPlans plans;
  for (const LayerConfig& layer : config.layers) {
    const Shape shape{layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.head_dim_v,
                      layer.window};
    const auto found = std::find(shapes.begin(), shapes.end(), shape);
    plans.index.push_back(static_cast<std::size_t>(found - shapes.begin()));
    if (found != shapes.end()) continue;
    shapes.push_back(shape);
    AttentionParams params;
    params.num_heads = layer.num_heads;
    params.num_kv_heads = layer.num_kv_heads;
    params.head_dim = layer.head_dim;
    params.head_dim_v = layer.head_dim_v;
    params.max_q_len = limits.max_rows;
    params.max_kv_len = limits.max_tokens;
    params.softmax_scale = config.softmax_scale;
    params.window = layer.window;
    params.threads = limits.threads;
    params.isa = limits.isa;
    plans.params.push_back(std::move(params));
  }
  return plans;
}

constexpr std::int64_t kActivationBlock =
    2048;  // elements of one item: enough to outweigh handing it out

}  // namespace

Decoder::Decoder(const Model::Impl& model, const DecoderLimits& limits)
    : model_(&model), kernels_(KernelsFor(limits.isa).vector), limits_(limits) {
  const ModelConfig& config = model.config;
  const Widths widths = WidthsOf(config);
  const std::int64_t M = limits.max_rows;
  for (AlignedBuffer<float>* buffer : {&hidden_, &normed_, &projected_})
    *buffer = AlignedBuffer<float>(M * config.d_model);
  query_ = AlignedBuffer<float>(M * widths.query);
  key_ = AlignedBuffer<float>(M * widths.key);
  value_ = AlignedBuffer<float>(M * widths.value);
  attended_ = AlignedBuffer<float>(M * widths.attended);
  gate_ = AlignedBuffer<float>(M * widths.ffn);
  up_ = AlignedBuffer<float>(M * widths.ffn);
  SetEdits({});
}

Result<Decoder> Decoder::Create(const Model::Impl& model, const DecoderLimits& limits) {
  Decoder decoder(model, limits);
  if (Status status = decoder.CreateRopes(); !status.ok()) return status;
  if (Status status = decoder.CreatePlans(); !status.ok()) return status;
  Result<LinearWorkspace> linear = LinearWorkspace::Create(LinearLimitsOf(model.config, limits));
  if (!linear.ok()) return linear.status();
  decoder.linear_.emplace(*std::move(linear));
  return decoder;
}

Status Decoder::CreateRopes() {
  const ModelConfig& config = model_->config;
  for (std::size_t i = 0; i < config.ropes.size(); ++i) {
    std::int64_t head_dim = config.layers.front().head_dim;
    for (const LayerConfig& layer : config.layers)
      if (layer.rope == static_cast<int>(i)) head_dim = std::min(head_dim, layer.head_dim);
    Result<Rope> rope = Rope::Create(config.ropes[i], head_dim, limits_.isa);
    if (!rope.ok()) return rope.status();
    const std::int64_t size = limits_.max_rows * rope->config().rotary_dim / 2;
    cosine_.emplace_back(size);
    sine_.emplace_back(size);
    ropes_.push_back(*std::move(rope));
  }
  return {};
}

Status Decoder::CreatePlans() {
  DistinctPlans plans = PlansOf(model_->config, limits_);
  plan_index_ = std::move(plans.index);
  for (const AttentionParams& params : plans.params) {
    Result<AttentionPlan> plan = AttentionPlan::Create(params);
    if (!plan.ok()) return plan.status();
    plans_.push_back(*std::move(plan));
  }
  return {};
}

std::vector<KvLayerShape> Decoder::CacheLayers(const ModelConfig& config) {
  std::vector<KvLayerShape> layers;
  for (const LayerConfig& layer : config.layers)
    layers.push_back({layer.num_kv_heads, layer.head_dim, layer.head_dim_v});
  return layers;
}

Status Decoder::Step(KvCache& cache, SequenceId sequence, std::span<const TokenId> ids,
                     RowRole role, float* logits) noexcept {
  const std::int64_t position = cache.length(sequence) - static_cast<std::int64_t>(ids.size());
  return Run({cache, sequence, ids, position, {.last = model_->config.layers.size()}, role},
             logits);
}

Status Decoder::Run(const Call& call, float* logits) noexcept {
  const std::int64_t qo_indptr[] = {0, call.rows()};
  for (AttentionPlan& plan : plans_)
    if (Status status =
            plan.impl().Prepare(call.cache, {&call.sequence, 1}, qo_indptr, {}, "Decoder");
        !status.ok())
      return status;
  RunTeam(limits_.threads, [&](Worker& worker) { RunStep(worker, call, logits); });
  timer_.Collect();
  rows_remembered_ += call.rows();
  if (rows_remembered_ >= kRowsRemembered) {
    ForgetEmbedding();
    rows_remembered_ = 0;
  }
  return {};
}

void Decoder::RunStep(Worker& worker, const Call& call, float* logits) noexcept {
  timer_.Begin(worker);
  if (call.part.hidden == nullptr)
    Embed(worker, call);
  else
    TakeHidden(worker, call);
  timer_.Mark(worker, StepPhase::kEmbedding);
  for (std::size_t layer = call.part.first; layer < call.part.last; ++layer) {
    const LayerWeights& w = model_->weights.layers[layer];
    Attend(worker, call, layer);
    AddAndNormalize(worker, call.rows(), w.post_attention_norm, w.ffn_norm);
    timer_.Mark(worker, StepPhase::kNorms);
    FeedForward(worker, call, layer);
    AddAndNormalize(worker, call.rows(), w.post_ffn_norm, NormAfter(layer));
    timer_.Mark(worker, StepPhase::kNorms);
  }
  if (logits != nullptr) RunHead(worker, call.rows() - 1, 1, logits);
}

/// The norm that reads the residual stream after `layer`: the next layer's, or the model's last.
const NormWeights& Decoder::NormAfter(std::size_t layer) const noexcept {
  const ModelWeights& weights = model_->weights;
  return layer + 1 < weights.layers.size() ? weights.layers[layer + 1].attention_norm
                                           : weights.final_norm;
}

void Decoder::Embed(Worker& worker, const Call& call) noexcept {
  const ModelConfig& config = model_->config;
  const std::int64_t d = config.d_model;
  worker.ForEach(call.rows(), [&](std::int64_t row) {
    float* hidden = hidden_.data() + row * d;
    DequantizeRow(model_->weights.embedding, limits_.isa, call.ids[row], hidden);
    if (config.embedding_scale != 1) kernels_->scale(hidden, config.embedding_scale, d);
    kernels_->rms_norm(hidden, model_->weights.layers[0].attention_norm.scale.data(),
                       config.norm_eps, d, normed_.data() + row * d);
    SetAngles(row, call.position + row);
    if ((row + 1) % kRowsRemembered == 0) ForgetEmbedding();
  });
}

/// An embedding that only serves to look rows up would come into memory bit by bit, tens of KiB
/// around each row, until it were all there: how much then depends on the text. Its pages stay in
/// the system's file cache, so to map a row again takes about a microsecond.
void Decoder::ForgetEmbedding() const noexcept {
  if (model_->config.tied_embeddings) return;
  const WeightView& embedding = model_->weights.embedding;
  model_->file.Forget(
      {embedding.data, static_cast<std::size_t>(embedding.rows * WeightRowBytes(embedding))});
}

void Decoder::ComputeHeads(Worker& worker, const Call& call, std::size_t index) noexcept {
  const LayerConfig& layer = model_->config.layers[index];
  const LayerWeights& w = model_->weights.layers[index];
  const std::int64_t d = model_->config.d_model, rows = call.rows();
  RunLinear(worker, *linear_, normed_.data(), d, call.linear_rows(), inputs_[index].products);
  timer_.Mark(worker, StepPhase::kQueryKeyValue);
  worker.ForEach(rows, [&](std::int64_t row) { RotateHeads(layer, w, row); });
  if (query_tap_ && worker.index() == 0) query_tap_(index, call.position, rows, query_.data());
  call.cache.impl().WriteOn(worker, call.sequence, static_cast<std::int64_t>(index), call.position,
                            rows, key_.data(), value_.data(), w.key.rows, w.value.rows);
  timer_.Mark(worker, StepPhase::kRotaryAndWrite);
  plans_[plan_index_[index]].impl().RunOn(worker, static_cast<std::int64_t>(index), query_.data(),
                                          attended_.data(), lse_.data());
}

void Decoder::Attend(Worker& worker, const Call& call, std::size_t index) noexcept {
  const LayerWeights& w = model_->weights.layers[index];
  const std::int64_t d = model_->config.d_model, rows = call.rows();
  if (call.part.attended != nullptr && index == call.part.first)
    TakeAttended(worker, call);
  else
    ComputeHeads(worker, call, index);
  if (!edits_.empty()) EditHeads(worker, rows, index);
  timer_.Mark(worker, StepPhase::kAttention);
  const LinearOutput output[] = {{&w.output, projected_.data(), d, OrNull(w.output_bias)}};
  RunLinear(worker, *linear_, attended_.data(), w.output.cols, call.linear_rows(), output);
  timer_.Mark(worker, StepPhase::kAttentionOutput);
  if (attention_tap_ != nullptr) ShowAttention(worker, call, index);
}

void Decoder::ShowAttention(Worker& worker, const Call& call, std::size_t layer) noexcept {
  AttentionStep step;
  step.layer = static_cast<std::int64_t>(layer);
  step.position = call.position;
  step.rows = call.rows();
  step.query = query_.data();
  step.lse = lse_.data();
  step.attended = attended_.data();
  step.projected = projected_.data();
  step.plan = &plans_[plan_index_[layer]].impl();
  attention_tap_->Observe(worker, step);
  timer_.Skip(worker);
}

void Decoder::SetAttentionTap(AttentionTap* tap) {
  std::int64_t heads = 0;
  for (const LayerConfig& layer : model_->config.layers) heads = std::max(heads, layer.num_heads);
  lse_ = tap == nullptr ? AlignedBuffer<float>() : AlignedBuffer<float>(limits_.max_rows * heads);
  attention_tap_ = tap;
  for (AttentionPlan& plan : plans_)
    plan.impl().TimeHeads(tap == nullptr ? nullptr : tap->head_times(),
                          tap == nullptr ? 0 : tap->head_times_stride());
}

void Decoder::RotateHeads(const LayerConfig& layer, const LayerWeights& w,
                          std::int64_t row) noexcept {
  const Rope& rope = ropes_[layer.rope];
  const std::int64_t half = rope.config().rotary_dim / 2, D = layer.head_dim;
  const float* cosine = cosine_[layer.rope].data() + row * half;
  const float* sine = sine_[layer.rope].data() + row * half;
  const auto rotate = [&](float* heads, std::int64_t count, const NormWeights& norm) {
    if (norm.kind != NormKind::kNone)
      for (std::int64_t h = 0; h < count; ++h)
        kernels_->rms_norm(heads + h * D, norm.scale.data(), model_->config.norm_eps, D,
                           heads + h * D);
    rope.Rotate(cosine, sine, count, D, heads);
  };
  rotate(query_.data() + row * layer.num_heads * D, layer.num_heads, w.query_norm);
  rotate(key_.data() + row * layer.num_kv_heads * D, layer.num_kv_heads, w.key_norm);
}

void Decoder::FeedForward(Worker& worker, const Call& call, std::size_t index) noexcept {
  const LayerWeights& w = model_->weights.layers[index];
  const std::int64_t d = model_->config.d_model, F = w.gate.rows, rows = call.rows();
  const LinearOutput inputs[] = {{&w.gate, gate_.data(), F, nullptr},
                                 {&w.up, up_.data(), F, nullptr}};
  RunLinear(worker, *linear_, normed_.data(), d, call.linear_rows(), inputs);
  timer_.Mark(worker, StepPhase::kGateUp);
  const auto activate =
      model_->config.activation == Activation::kSilu ? kernels_->silu_mul : kernels_->gelu_mul;
  const std::int64_t elements = rows * F;
  worker.ForEach(CeilDiv(elements, kActivationBlock), [&](std::int64_t block) {
    const std::int64_t begin = block * kActivationBlock;
    float* gate = gate_.data() + begin;
    activate(gate, up_.data() + begin, std::min(kActivationBlock, elements - begin), gate);
  });
  timer_.Mark(worker, StepPhase::kActivation);
  const LinearOutput output[] = {{&w.down, projected_.data(), d, nullptr}};
  RunLinear(worker, *linear_, gate_.data(), F, call.linear_rows(), output);
  timer_.Mark(worker, StepPhase::kDown);
}

/// hidden += post_norm(projected); normed = next_norm(hidden).
void Decoder::AddAndNormalize(Worker& worker, std::int64_t rows, const NormWeights& post_norm,
                              const NormWeights& next_norm) noexcept {
  const std::int64_t d = model_->config.d_model;
  const float eps = model_->config.norm_eps;
  worker.ForEach(rows, [&](std::int64_t row) {
    float* hidden = hidden_.data() + row * d;
    float* projected = projected_.data() + row * d;
    if (post_norm.kind != NormKind::kNone)
      kernels_->rms_norm(projected, post_norm.scale.data(), eps, d, projected);
    kernels_->add(hidden, projected, d);
    kernels_->rms_norm(hidden, next_norm.scale.data(), eps, d, normed_.data() + row * d);
  });
}

void Decoder::Logits(std::int64_t begin, std::int64_t count, float* logits) noexcept {
  RunTeam(limits_.threads, [&](Worker& worker) {
    timer_.Begin(worker);
    RunHead(worker, begin, count, logits);
  });
  timer_.Collect();
  AddProduct(StepPhase::kHead, model_->weights.head, count);
}

void Decoder::RunHead(Worker& worker, std::int64_t begin, std::int64_t count,
                      float* logits) noexcept {
  const ModelConfig& config = model_->config;
  const std::int64_t d = config.d_model, V = config.vocab_size;
  const LinearOutput output[] = {{&model_->weights.head, logits, V, nullptr}};
  RunLinear(worker, *linear_, normed_.data() + begin * d, d, {.decode = count}, output);
  if (config.logit_softcap != 0)
    worker.ForEach(count, [&](std::int64_t row) {
      kernels_->softcap(logits + row * V, config.logit_softcap, V);
    });
  timer_.Mark(worker, StepPhase::kHead);
}

bool Decoder::RolesAgree() const noexcept {
  const auto agrees = [&](const WeightView& weight) {
    return manyhead::RolesAgree(weight, limits_.isa, limits_.math);
  };
  return std::all_of(model_->weights.layers.begin(), model_->weights.layers.end(),
                     [&](const LayerWeights& w) {
                       return agrees(w.query) && agrees(w.key) && agrees(w.value) &&
                              agrees(w.output) && agrees(w.gate) && agrees(w.up) && agrees(w.down);
                     });
}

std::int64_t Decoder::attention_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const AttentionPlan& plan : plans_) bytes += plan.scratch_bytes();
  return bytes;
}

std::int64_t Decoder::scratch_bytes() const noexcept {
  std::int64_t bytes = linear_->size_bytes() + attention_bytes();
  for (const AlignedBuffer<float>* buffer :
       {&hidden_, &normed_, &projected_, &query_, &key_, &value_, &attended_, &lse_, &gate_, &up_})
    bytes += buffer->size_bytes();
  for (std::size_t i = 0; i < ropes_.size(); ++i)
    bytes += cosine_[i].size_bytes() + sine_[i].size_bytes();
  return bytes;
}

std::int64_t Decoder::ScratchBytes(const ModelConfig& config, const DecoderLimits& limits) {
  std::int64_t elements = RowElements(config, WidthsOf(config));
  for (const RopeConfig& rope : config.ropes) elements += rope.rotary_dim / 2 * 2;  // cosine, sine
  std::int64_t bytes = LinearWorkspace::SizeBytes(LinearLimitsOf(config, limits)) +
                       limits.max_rows * elements * static_cast<std::int64_t>(sizeof(float));
  for (const AttentionParams& params : PlansOf(config, limits).params)
    bytes += AttentionPlan::Impl::ScratchBytes(params);
  return bytes;
}

}  // namespace manyhead
