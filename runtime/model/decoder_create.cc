#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/linear_kernels.h"
#include "runtime/model/decoder.h"
#include "runtime/model/decoder_call.h"
#include "runtime/platform/dispatch.h"

/// Creates a decoder: its buffers, and the views of them that its layers run.

namespace manyhead {
namespace {

/// The largest widths of all layers; buffers must serve every layer.
struct Widths {
  std::int64_t query = 0, key = 0, value = 0, attended = 0, gate = 0, ffn = 0, most_cols = 0;
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
  widths.gate = config.feed_forward == FeedForwardKind::kGated ? widths.ffn : 0;
  widths.most_cols = std::max({config.d_model, widths.attended, widths.ffn});
  return widths;
}

/// Returns the elements of all activation buffers for one row.
std::int64_t RowElements(const ModelConfig& config, const Widths& widths) {
  return 3 * config.d_model + widths.query + widths.key + widths.value + widths.attended +
         widths.gate + widths.ffn;
}

LinearLimits LinearLimitsOf(const ModelConfig& config, const DecoderLimits& limits) {
  return {.max_cols = WidthsOf(config).most_cols,
          .max_rows = limits.max_rows,
          .threads = limits.threads,
          .isa = limits.isa,
          .math = limits.math};
}

/// The parameters of attention for every distinct layer shape, and the index of each layer's shape.
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
    plans.params.push_back(AttentionParamsOf(config, layer, limits));
  }
  return plans;
}

/// The rows of a projection for heads [first, first + count), each with `head_dim` rows.
struct HeadRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns the KV heads that some query reads, as runs.
std::vector<HeadRun> RunsRead(const std::vector<bool>& unread, std::int64_t num_kv_heads) {
  if (unread.empty()) return {{0, num_kv_heads}};
  std::vector<HeadRun> runs;
  for (std::int64_t head = 0; head < num_kv_heads; ++head) {
    if (unread[static_cast<std::size_t>(head)]) continue;
    if (runs.empty() || runs.back().first + runs.back().count != head) runs.push_back({head, 0});
    ++runs.back().count;
  }
  return runs;
}

/// Returns true where each run's rows, `rows` for each KV head, can be multiplied separately.
bool CanCut(const WeightView& weight, const std::vector<HeadRun>& runs, std::int64_t rows) {
  return !weight.packed || std::all_of(runs.begin(), runs.end(), [&](const HeadRun& run) {
    return run.first * rows % kernels::kPackedRows == 0 &&
           run.count * rows % kernels::kPackedRows == 0;
  });
}

}  // namespace

AttentionParams AttentionParamsOf(const ModelConfig& config, const LayerConfig& layer,
                                  const DecoderLimits& limits) {
  AttentionParams params;
  params.num_heads = layer.num_heads;
  params.num_kv_heads = layer.num_kv_heads;
  params.head_dim = layer.head_dim;
  params.head_dim_v = layer.head_dim_v;
  params.max_q_len = limits.max_rows;
  params.max_kv_len = limits.max_tokens;
  params.softmax_scale = config.softmax_scale;
  params.logit_softcap = config.attention_softcap;
  params.causal = config.causal;
  params.window = layer.window;
  params.threads = limits.threads;
  params.isa = limits.isa;
  return params;
}

Decoder::Decoder(const Model::Impl& model, const DecoderLimits& limits)
    : model_(&model),
      kernels_(KernelsFor(limits.isa).vector),
      limits_(limits),
      rows_(limits.max_rows, limits.max_sequences) {
  const ModelConfig& config = model.config;
  const Widths widths = WidthsOf(config);
  const std::int64_t M = limits.max_rows;
  for (AlignedBuffer<float>* buffer : {&hidden_, &normed_, &projected_})
    *buffer = AlignedBuffer<float>(M * config.d_model);
  query_ = AlignedBuffer<float>(M * widths.query);
  key_ = AlignedBuffer<float>(M * widths.key);
  value_ = AlignedBuffer<float>(M * widths.value);
  attended_ = AlignedBuffer<float>(M * widths.attended);
  gate_ = AlignedBuffer<float>(M * widths.gate);
  up_ = AlignedBuffer<float>(M * widths.ffn);
}

Result<Decoder> Decoder::Create(const Model::Impl& model, const DecoderLimits& limits) {
  Decoder decoder(model, limits);
  if (Status status = decoder.CreateRopes(); !status.ok()) return status;
  if (Status status = decoder.CreatePlans(); !status.ok()) return status;
  Result<LinearWorkspace> linear = LinearWorkspace::Create(LinearLimitsOf(model.config, limits));
  if (!linear.ok()) return linear.status();
  decoder.linear_.emplace(*std::move(linear));
  decoder.MakeLayers();
  return decoder;
}

Status Decoder::CreateRopes() {
  const ModelConfig& config = model_->config;
  for (std::size_t i = 0; i < config.ropes.size(); ++i) {
    std::int64_t head_dim = config.layers.front().head_dim;
    for (const LayerConfig& layer : config.layers)
      if (layer.rope == static_cast<int>(i)) head_dim = std::min(head_dim, layer.head_dim);
    RopeConfig wanted = config.ropes[i];
    if (!wanted.long_factors.empty() && limits_.max_tokens > wanted.original_context)
      wanted.factors = wanted.long_factors;
    Result<Rope> rope = Rope::Create(wanted, head_dim, limits_.isa);
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

/// A matrix whose rows are packed across heads is multiplied as a whole.
Decoder::Inputs Decoder::InputsOf(std::size_t index, const std::vector<bool>& unread) {
  const ModelConfig& config = model_->config;
  const LayerWeights& w = model_->weights.layers[index];
  const std::int64_t K = config.layers[index].num_kv_heads;
  // A norm of all heads reads those too that nobody else does.
  const std::vector<HeadRun> read =
      RunsRead(config.qk_norm_whole ? std::vector<bool>() : unread, K);
  const std::vector<HeadRun> all = {{0, K}};
  Inputs inputs;
  inputs.weights.reserve(3 * read.size() + 3);  // products hold pointers into it
  const auto add = [&](const WeightView& weight, const std::vector<float>& bias, float* y) {
    const std::int64_t rows = weight.rows / K;  // rows of one KV head
    for (const HeadRun& run : CanCut(weight, read, rows) ? read : all) {
      const std::int64_t first = run.first * rows;
      inputs.weights.push_back(WeightRows(weight, first, run.count * rows));
      inputs.products.push_back({&inputs.weights.back(), y + first, weight.rows,
                                 config.qkv_bias ? bias.data() + first : nullptr});
    }
  };
  add(w.query, w.query_bias, query_.data());
  add(w.key, w.key_bias, key_.data());
  add(w.value, w.value_bias, value_.data());
  return inputs;
}

Norm Decoder::NormOf(const NormWeights& weights) const noexcept {
  return {weights.kind, weights.scale.data(), weights.shift.data(), model_->config.norm_eps};
}

/// Buffers, weights, ropes and plans keep their addresses when a decoder is moved.
Decoder::Layer Decoder::MakeLayer(std::size_t index) {
  const ModelConfig& config = model_->config;
  const LayerConfig& shape = config.layers[index];
  const LayerWeights& w = model_->weights.layers[index];
  Layer layer;
  layer.inputs = InputsOf(index, {});
  layer.attention_norm = NormOf(w.attention_norm);
  layer.post_attention_norm = NormOf(w.post_attention_norm);
  layer.ffn_norm = NormOf(w.ffn_norm);
  layer.post_ffn_norm = NormOf(w.post_ffn_norm);

  AttentionBlock& attention = layer.attention;
  attention.output = &w.output;
  attention.output_bias = OrNull(w.output_bias, config.output_bias);
  const bool rotary = config.positions == PositionKind::kRotary && !ropes_.empty();
  const auto rope = static_cast<std::size_t>(shape.rope);
  const bool whole = config.qk_norm_whole;
  const Rope* const turns = rotary ? &ropes_[rope] : nullptr;
  attention.query_rotation = {NormOf(w.query_norm), turns, kernels_, whole};
  attention.key_rotation = {NormOf(w.key_norm), turns, kernels_, whole};
  attention.plan = &plans_[plan_index_[index]].impl();
  attention.query = query_.data();
  attention.key = key_.data();
  attention.value = value_.data();
  attention.attended = attended_.data();
  attention.cosine = rotary ? cosine_[rope].data() : nullptr;
  attention.sine = rotary ? sine_[rope].data() : nullptr;

  FeedForward& block = layer.feed_forward;
  block.kind = config.feed_forward;
  block.activation = config.activation;
  block.gate = config.feed_forward == FeedForwardKind::kGated ? &w.gate : nullptr;
  block.up = &w.up;
  block.down = &w.down;
  block.gate_bias = OrNull(w.gate_bias, config.ffn_bias && block.gate != nullptr);
  block.up_bias = OrNull(w.up_bias, config.ffn_bias);
  block.down_bias = OrNull(w.down_bias, config.ffn_bias);
  block.gate_rows = gate_.data();
  block.up_rows = up_.data();
  block.kernels = kernels_;
  return layer;
}

void Decoder::MakeLayers() {
  layers_.reserve(model_->config.layers.size());
  for (std::size_t index = 0; index < model_->config.layers.size(); ++index) {
    layers_.push_back(MakeLayer(index));
    layers_.back().attention.inputs = layers_.back().inputs.products;
  }
  final_norm_ = NormOf(model_->weights.final_norm);
}

void Decoder::SkipUnread(const std::vector<HeadEdits>& edits) {
  std::vector<Inputs> inputs;
  for (std::size_t index = 0; index < layers_.size(); ++index)
    inputs.push_back(InputsOf(index, edits.empty() ? std::vector<bool>() : edits[index].unread));
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    layers_[index].inputs = std::move(inputs[index]);
    layers_[index].attention.inputs = layers_[index].inputs.products;
  }
}

void Decoder::AllowTaps(bool allowed) {
  std::int64_t heads = 0;
  for (const LayerConfig& layer : model_->config.layers) heads = std::max(heads, layer.num_heads);
  lse_ = allowed ? AlignedBuffer<float>(limits_.max_rows * heads) : AlignedBuffer<float>();
  for (Layer& layer : layers_) layer.attention.lse = allowed ? lse_.data() : nullptr;
}

bool Decoder::RolesAgree(std::int64_t position) const noexcept {
  if (position < kAccuratePositions) return false;
  const auto agrees = [&](const WeightView* weight) {
    return weight == nullptr || manyhead::RolesAgree(*weight, limits_.isa, limits_.math);
  };
  return std::all_of(layers_.begin(), layers_.end(), [&](const Layer& layer) {
    const auto& inputs = layer.inputs.weights;
    return std::all_of(inputs.begin(), inputs.end(),
                       [&](const WeightView& weight) { return agrees(&weight); }) &&
           agrees(layer.attention.output) && agrees(layer.feed_forward.gate) &&
           agrees(layer.feed_forward.up) && agrees(layer.feed_forward.down);
  });
}

std::int64_t Decoder::attention_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const AttentionPlan& plan : plans_) bytes += plan.scratch_bytes();
  return bytes;
}

std::int64_t Decoder::scratch_bytes() const noexcept {
  std::int64_t bytes = linear_->size_bytes() + attention_bytes() +
                       StepRows::SizeBytes(limits_.max_rows, limits_.max_sequences);
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
                       StepRows::SizeBytes(limits.max_rows, limits.max_sequences) +
                       limits.max_rows * elements * static_cast<std::int64_t>(sizeof(float));
  for (const AttentionParams& params : PlansOf(config, limits).params)
    bytes += AttentionPlan::Impl::ScratchBytes(params);
  return bytes;
}

}  // namespace manyhead
