#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "manyhead/isa.h"
#include "manyhead/memory.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/linear/pack.h"
#include "runtime/memory/checked.h"
#include "runtime/memory/keys_seen.h"
#include "runtime/memory/kv_plan.h"
#include "runtime/memory/quantization.h"
#include "runtime/memory/shape_spec.h"
#include "runtime/model/decoder.h"
#include "runtime/model/score_rows.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"
#include "runtime/session/session_impl.h"

namespace manyhead {
namespace {

constexpr const char* kName = "PlanMemory";
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
constexpr std::int64_t kLeastGoodHeadDim = 64, kMostGoodHeadDim = 128;
/// Resident memory of the command itself on Linux (x86-64, Debian 12) after it has run a model: the
/// used parts of its code and of libdnnl, libstdc++, libc, libm, libgomp and libpcre2 (10 MiB), its
/// own data and stacks (1 MiB).
constexpr std::int64_t kProcessBytes = std::int64_t{11} << 20;
/// Least range that the kernel maps around a page of a file when it is read.
constexpr std::int64_t kFaultAroundBytes = std::int64_t{64} << 10;

std::int64_t Elements(const TensorInfo& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= size;
  return elements;
}

WeightView ViewOf(const TensorInfo& tensor) {
  WeightView view;
  view.type = tensor.type;
  view.cols = tensor.shape.back();
  view.rows = Elements(tensor) / view.cols;
  return view;
}

Status CheckShape(const ModelShape& shape) {
  const auto in_range = [](std::int64_t value, std::int64_t low, std::int64_t high) {
    return value >= low && value <= high;
  };
  const ModelConfig& config = shape.config;
  if (config.layers.empty())
    return InvalidArgument(kName, "the shape has 0 layers; expected 1 or more");
  if (!in_range(config.d_model, 1, kMaxShapeDim) || !in_range(config.vocab_size, 0, kMaxShapeVocab))
    return InvalidArgument(kName, "d_model = ", config.d_model,
                           ", vocab_size = ", config.vocab_size, "; expected 1 to ", kMaxShapeDim,
                           " and up to ", kMaxShapeVocab);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    if (in_range(layer.num_kv_heads, 1, kMaxShapeHeads) &&
        in_range(layer.num_heads, 1, kMaxShapeHeads) && layer.num_heads % layer.num_kv_heads == 0 &&
        in_range(layer.head_dim, 1, kMaxShapeHeadDim) &&
        in_range(layer.head_dim_v, 1, kMaxShapeHeadDim) &&
        in_range(layer.ffn_dim, 0, kMaxShapeDim) && in_range(layer.window, 0, kMaxShapeContext))
      continue;
    return InvalidArgument(kName, "layer ", i, ": num_heads = ", layer.num_heads,
                           ", num_kv_heads = ", layer.num_kv_heads, ", head_dim = ", layer.head_dim,
                           ", head_dim_v = ", layer.head_dim_v, ", ffn_dim = ", layer.ffn_dim,
                           ", window = ", layer.window, "; expected numbers that BuildShape gives");
  }
  return Status();
}

/// Computes a plan from a shape.
class Planner {
 public:
  Planner(const ModelShape& shape, const MemoryOptions& options) : shape_(shape) {
    plan_.session = options.session;
    plan_.batch = options.batch;
  }

  void AddWeights();
  void AddResidentWeights(WeightStorage storage, bool packs);
  std::vector<WeightView> MatricesOf(const TensorInfo& tensor,
                                     const std::optional<TensorPlace>& place) const;
  void AddKv(const KvPlan& kv);
  void AddScratch(const MemoryOptions& options);
  void AddFlops(const KvPlan& kv);
  void AddDecodeBytes();
  void AddWarnings();
  bool overflow() const { return math_.overflow(); }
  MemoryPlan Finish();

 private:
  FlopCount HeadFlops(const LayerConfig& layer, std::int64_t queries, std::int64_t pairs,
                      std::int64_t pairs_seen);
  void AddFeedForwardFlops(std::int64_t queries, std::size_t layer, FlopCount& flops);
  void AddTo(FlopCount& sum, const FlopCount& part);
  std::int64_t tokens() const { return plan_.session.context; }

  const ModelShape& shape_;
  MemoryPlan plan_;
  CheckedMath math_;
};

void Planner::AddWeights() {
  plan_.layers.resize(shape_.config.layers.size());
  for (std::size_t i = 0; i < plan_.layers.size(); ++i)
    plan_.layers[i].heads.resize(static_cast<std::size_t>(shape_.config.layers[i].num_kv_heads));
  for (const TensorInfo& tensor : shape_.tensors) {
    const std::int64_t elements = Elements(tensor);
    math_.Add(plan_.parameters, elements);
    math_.Add(plan_.weight_bytes, tensor.size_bytes);
    const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
    if (!place || place->layer < 0 || place->layer >= std::ssize(plan_.layers)) continue;
    LayerPlan& layer = plan_.layers[static_cast<std::size_t>(place->layer)];
    math_.Add(layer.parameters, elements);
    math_.Add(layer.weight_bytes, tensor.size_bytes);
    if (IsProjection(*place->row)) {
      math_.Add(layer.projection_parameters, elements);
      math_.Add(plan_.projection_parameters, elements);
    }
    if (!IsPerHead(*place->row)) continue;
    const auto heads = static_cast<std::int64_t>(layer.heads.size());
    for (HeadPlan& head : layer.heads) {
      head.parameters += elements / heads;
      head.weight_bytes += tensor.size_bytes / heads;
    }
  }
}

void Planner::AddResidentWeights(WeightStorage storage, bool packs) {
  plan_.mapped_bytes = shape_.metadata_bytes;
  plan_.tokenizer_bytes = shape_.tokenizer_bytes;
  plan_.process_bytes = kProcessBytes;
  for (const TensorInfo& tensor : shape_.tensors) {
    const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
    if (tensor.shape.size() == 1) {
      math_.Add(plan_.vector_bytes, math_.Product({Elements(tensor), sizeof(float)}));
      continue;
    }
    const bool looked_up = place && IsLookedUp(*place->row, shape_.config);
    if (looked_up && place->row->role == TensorRole::kEmbedding) {
      // See Decoder::ReleaseEmbeddingPages.
      const std::int64_t around = kFaultAroundBytes + WeightRowBytes(ViewOf(tensor));
      math_.Add(plan_.mapped_bytes,
                std::min(tensor.size_bytes, Decoder::kMaxResidentRows * around));
    } else if (!looked_up && storage == WeightStorage::kPacked && packs &&
               CanPack(ViewOf(tensor))) {
      for (const WeightView& view : MatricesOf(tensor, place))
        math_.Add(plan_.packed_bytes, math_.Product({PackedGroups(view), PackedGroupBytes(view)}));
    } else {
      math_.Add(plan_.mapped_bytes, tensor.size_bytes);
    }
  }
}

/// Returns the matrices that a tensor is bound as: three for fused queries, keys and values.
std::vector<WeightView> Planner::MatricesOf(const TensorInfo& tensor,
                                            const std::optional<TensorPlace>& place) const {
  const WeightView whole = ViewOf(tensor);
  if (!place || place->row->role != TensorRole::kQueryKeyValue ||
      place->layer >= std::ssize(shape_.config.layers))
    return {whole};
  const LayerConfig& layer = shape_.config.layers[static_cast<std::size_t>(place->layer)];
  std::vector<WeightView> views(3, whole);
  views[0].rows = layer.num_heads * layer.head_dim;
  views[1].rows = layer.num_kv_heads * layer.head_dim;
  views[2].rows = layer.num_kv_heads * layer.head_dim_v;
  return views;
}

void Planner::AddKv(const KvPlan& kv) {
  plan_.kv_bytes = kv.used_bytes;
  plan_.kv_table_bytes = kv.table_bytes;
  plan_.kv_peak_bytes = kv.peak_bytes;
  plan_.kv_bytes_per_token = kv.bytes_per_token;
  for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
    LayerPlan& layer = plan_.layers[i];
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      const KvHeadBytes& from = kv.heads[i][h];
      HeadPlan& head = layer.heads[h];
      head.params = from.head.params;
      head.kv_bytes_per_token = from.bytes_per_token;
      head.kv_bytes = from.page_bytes;
      head.kv_tokens = from.tokens;
      layer.kv_bytes_per_token += from.bytes_per_token;
      layer.kv_bytes += from.page_bytes;
    }
  }
}

void Planner::AddScratch(const MemoryOptions& options) {
  const SessionOptions& session = plan_.session;
  const DecoderLimits limits = {.max_rows = std::max(session.chunk, options.batch),
                                .max_tokens = session.context,
                                .threads = session.threads,
                                .isa = *session.isa,
                                .math = session.math};
  const std::int64_t logit_rows = options.batch + (options.score ? kScoreRows : 0);
  plan_.scratch_bytes = Decoder::ScratchBytes(shape_.config, limits);
  math_.Add(plan_.scratch_bytes,
            math_.Product({logit_rows, shape_.config.vocab_size, sizeof(float)}));
  for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
    plan_.layers[i].score_matrix_bytes = math_.Product(
        {options.batch, shape_.config.layers[i].num_heads, tokens(), tokens(), sizeof(float)});
    plan_.score_matrix_bytes =
        std::max(plan_.score_matrix_bytes, plan_.layers[i].score_matrix_bytes);
  }
}

/// Returns the operations of the G query heads of one KV head, and of that KV head.
FlopCount Planner::HeadFlops(const LayerConfig& layer, std::int64_t queries, std::int64_t pairs,
                             std::int64_t pairs_seen) {
  const std::int64_t group = layer.num_heads / layer.num_kv_heads;
  const std::int64_t width = layer.head_dim + layer.head_dim_v;
  FlopCount flops;
  // The products of Q and K, V and the output: each row of D or Dv times d_model.
  flops.projections = math_.Product({2, queries, (group + 1) * width, shape_.config.d_model});
  flops.scores = math_.Product({2, pairs, group * width});
  flops.scores_seen = math_.Product({2, pairs_seen, group * width});
  return flops;
}

void Planner::AddTo(FlopCount& sum, const FlopCount& part) {
  math_.Add(sum.projections, part.projections);
  math_.Add(sum.scores, part.scores);
  math_.Add(sum.scores_seen, part.scores_seen);
  math_.Add(sum.feed_forward, part.feed_forward);
  math_.Add(sum.logits, part.logits);
}

/// Adds the operations of feed-forward: every token passes each matrix once, or those of some
/// experts and the router.
void Planner::AddFeedForwardFlops(std::int64_t queries, std::size_t layer, FlopCount& flops) {
  const ModelConfig& config = shape_.config;
  const std::int64_t d = config.d_model, F = config.layers[layer].ffn_dim;
  const std::int64_t matrices = config.feed_forward == FeedForwardKind::kGated ? 3 : 2;
  const std::int64_t blocks = std::max<std::int64_t>(F > 0 ? 1 : 0, config.experts_per_token);
  math_.Add(flops.feed_forward, math_.Product({2, queries, blocks, matrices, d, F}));
  if (config.experts_per_token > 0)
    math_.Add(flops.feed_forward, math_.Product({2, queries, config.num_experts, d}));
}

void Planner::AddFlops(const KvPlan& kv) {
  const std::int64_t T = tokens(), B = plan_.batch;
  const std::int64_t queries = math_.Product({B, T});
  for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
    const LayerConfig& layer = shape_.config.layers[i];
    LayerPlan& planned = plan_.layers[i];
    for (std::size_t h = 0; h < planned.heads.size(); ++h) {
      const KvHead& head = kv.heads[i][h].head;
      const KeysSeen keys(head, layer.window, plan_.session.chunk);
      const std::int64_t stored = head.off() ? 0 : T, last = keys.OfLast(T);
      HeadPlan& one = planned.heads[h];
      one.flops = HeadFlops(layer, queries, math_.Product({queries, stored}),
                            math_.Product({B, keys.Pairs(T, math_)}));
      one.decode_kv_tokens = last;
      AddTo(planned.flops, one.flops);
      AddTo(plan_.decode_flops,
            HeadFlops(layer, B, math_.Product({B, stored}), math_.Product({B, last})));
      math_.Add(plan_.decode_kv_bytes, math_.Product({B, last, one.kv_bytes_per_token}));
    }
    AddFeedForwardFlops(queries, i, planned.flops);
    AddFeedForwardFlops(B, i, plan_.decode_flops);
    AddTo(plan_.flops, planned.flops);
  }
  const std::int64_t logits =
      math_.Product({2, B, shape_.config.d_model, shape_.config.vocab_size});
  plan_.flops.logits = plan_.decode_flops.logits = logits;
  // total() adds them without an overflow check.
  std::int64_t total = logits;
  for (const std::int64_t part :
       {plan_.flops.projections, plan_.flops.scores, plan_.flops.feed_forward})
    math_.Add(total, part);
}

/// A decode step reads every matrix once, whatever the batch; of the embedding, where it is no
/// output matrix, a row, and of the experts those that its tokens go through, all different ones.
void Planner::AddDecodeBytes() {
  const ModelConfig& config = shape_.config;
  for (const TensorInfo& tensor : shape_.tensors) {
    const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
    if (place && IsLookedUp(*place->row, config)) continue;
    std::int64_t bytes = tensor.size_bytes;
    if (place && IsExpert(place->row->role)) {
      const std::int64_t read =
          std::min(config.num_experts, math_.Product({plan_.batch, config.experts_per_token}));
      bytes = math_.Product({bytes / config.num_experts, read});
    }
    math_.Add(plan_.decode_weight_bytes, bytes);
  }
}

void Planner::AddWarnings() {
  const auto& layers = shape_.config.layers;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t dim = layers[i].head_dim;
    if (dim == last || (dim >= kLeastGoodHeadDim && dim <= kMostGoodHeadDim)) continue;
    last = dim;
    plan_.warnings.push_back(
        "head_dim = " + std::to_string(dim) + " of layer " + std::to_string(i) + " is outside " +
        std::to_string(kLeastGoodHeadDim) + " to " + std::to_string(kMostGoodHeadDim) +
        ", where models are known to do well");
  }
  if (shape_.config.experts_per_token > 0)
    plan_.warnings.push_back("models with experts are planned, but this version does not run them");
  if (!shape_.quantization.empty())
    plan_.warnings.push_back("weights are planned as quantization_config stores them (" +
                             shape_.quantization + "), but this version does not run such files");
}

MemoryPlan Planner::Finish() {
  for (const std::int64_t bytes :
       {plan_.packed_bytes, plan_.mapped_bytes, plan_.vector_bytes, plan_.tokenizer_bytes,
        plan_.process_bytes, plan_.kv_peak_bytes, plan_.scratch_bytes})
    math_.Add(plan_.total_bytes, bytes);
  return std::move(plan_);
}

}  // namespace

Result<MemoryPlan> PlanMemory(const ModelShape& shape, const MemoryOptions& wanted) {
  if (Status status = CheckShape(shape); !status.ok()) return status;
  if (wanted.batch < 1 || wanted.batch > kMaxBatch)
    return InvalidArgument(kName, "batch = ", wanted.batch, "; expected 1 to ", kMaxBatch);
  MemoryOptions options = wanted;
  if (Status status = CompleteSessionOptions(shape.config, options.session); !status.ok())
    return status;
  Result<KvCacheParams> cache = SessionCacheParams(shape.config, options.session);
  if (!cache.ok()) return cache.status();
  const Result<KvPlan> kv = PlanKv(*cache, options.batch, options.session.chunk);
  if (!kv.ok()) return kv.status();
  const Result<Isa> isa = SelectIsa();  // as Model::Load
  if (!isa.ok()) return isa.status();

  Planner planner(shape, options);
  planner.AddWeights();
  planner.AddResidentWeights(options.weights, KernelsFor(*isa).packed != nullptr);
  planner.AddKv(*kv);
  planner.AddScratch(options);
  planner.AddFlops(*kv);
  planner.AddDecodeBytes();
  planner.AddWarnings();
  MemoryPlan plan = planner.Finish();
  if (planner.overflow())
    return InvalidArgument(kName, "context = ", options.session.context,
                           ", batch = ", options.batch,
                           " need more than 2^63 - 1 bytes or operations");
  return plan;
}

}  // namespace manyhead
