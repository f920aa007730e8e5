#include "tests/heads/observed_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/cache/sequence_cache.h"
#include "runtime/model/weights.h"

namespace manyhead::testing {

ObservedDecoder::ObservedDecoder(const Model& model, const Options& options)
    : model_(model), options_(options) {
  if (!options_.isa) options_.isa = *SelectIsa();
  Result<Decoder> decoder = Decoder::Create(model_.impl(), {.max_rows = options.chunk,
                                                            .max_tokens = options.context,
                                                            .threads = options.threads,
                                                            .isa = *options_.isa,
                                                            .math = MathMode::kExact});
  EXPECT_TRUE(decoder.ok()) << decoder.status().message();
  decoder_.emplace(*std::move(decoder));
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model_.config());
  params.k_type = options.k_type;
  params.v_type = options.v_type;
  params.max_tokens = options.context;
  params.isa = options_.isa;
  if (!options.kv_policy.empty()) params.heads = *ParseKvHeads(options.kv_policy, params);
  Result<SequenceCache> made = CreateSequenceCache(params, options.chunk);
  EXPECT_TRUE(made.ok()) << made.status().message();
  cache_.emplace(std::move(made->cache));
  sequence_ = made->sequence;
  tap_.config = &model_.config();
  tap_.layers.resize(model_.config().layers.size());
  decoder_->AllowTaps(true);
}

void ObservedDecoder::Capture(const CaptureOptions& options) {
  const Status status = HeadCapture::Check(config(), options_.context, options, "test");
  ASSERT_TRUE(status.ok()) << status.message();
  tap_.observer.capture.emplace(config(), options_.context, options);
}

void ObservedDecoder::Profile(HeadProfile* profile, const HeadProfileOptions& options) {
  Result<HeadProfiler> made = HeadProfiler::Create(model_.impl(),
                                                   {.context = options_.context,
                                                    .max_rows = options_.chunk,
                                                    .threads = options_.threads,
                                                    .isa = *options_.isa},
                                                   options, profile);
  ASSERT_TRUE(made.ok()) << made.status().message();
  tap_.observer.profiler.emplace(*std::move(made));
}

void ObservedDecoder::Step(std::span<const TokenId> ids) {
  Status status = cache_->Reserve(sequence_, static_cast<std::int64_t>(ids.size()));
  ASSERT_TRUE(status.ok()) << status.message();
  SequenceStep step(*cache_, sequence_, ids, RowRole::kPrefill);
  step.sequence.attention_tap = &tap_;
  status = decoder_->Step(*cache_, step.Batch());
  ASSERT_TRUE(status.ok()) << status.message();
}

void ObservedDecoder::Tap::Observe(Worker& worker, const AttentionStep& step) noexcept {
  if (worker.index() == 0) {
    const LayerConfig& shape = config->layers[static_cast<std::size_t>(step.layer)];
    ObservedLayer& layer = layers[static_cast<std::size_t>(step.layer)];
    const auto copy = [&](const float* from, std::int64_t row, std::vector<float>& to) {
      to.assign(from, from + step.rows * row);
    };
    layer.position = step.position;
    layer.rows = step.rows;
    copy(step.query, shape.num_heads * shape.head_dim, layer.query);
    copy(step.lse, shape.num_heads, layer.lse);
    copy(step.attended, shape.num_heads * shape.head_dim_v, layer.attended);
    copy(step.projected, config->d_model, layer.projected);
  }
  observer.Observe(worker, step);
  worker.Barrier();
}

bool ObservedDecoder::Shows(HeadId head, std::int64_t position, std::int64_t key) const {
  const LayerConfig& layer = config().layers[static_cast<std::size_t>(head.layer)];
  const std::int64_t kv_head = head.head / (layer.num_heads / layer.num_kv_heads);
  if (key > position || !cache_->Holds(sequence_, head.layer, kv_head, key)) return false;
  if (layer.window > 0 && key <= position - layer.window) return false;
  const KvPolicy& policy = cache_->params().heads[head.layer][kv_head].policy;
  if (policy.kind == KvPolicyKind::kWindow) return key > position - policy.recent;
  if (policy.kind == KvPolicyKind::kSinkRecent)
    return key < policy.sink || key > position - policy.recent;
  return policy.kind != KvPolicyKind::kOff;
}

std::vector<double> ObservedDecoder::Weights(HeadId head, std::int64_t position) const {
  const LayerConfig& layer = config().layers[static_cast<std::size_t>(head.layer)];
  const ObservedLayer& seen = tap_.layers[static_cast<std::size_t>(head.layer)];
  const std::int64_t D = layer.head_dim, H = layer.num_heads,
                     kv_head = head.head / (H / layer.num_kv_heads);
  const float* q = &seen.query[((position - seen.position) * H + head.head) * D];
  const double scale = config().softmax_scale != 0 ? double{config().softmax_scale}
                                                   : 1 / std::sqrt(static_cast<double>(D));
  std::vector<double> weights(static_cast<std::size_t>(position + 1), -HUGE_VAL);
  std::vector<float> k(static_cast<std::size_t>(D));
  double max = -HUGE_VAL, sum = 0;
  for (std::int64_t s = 0; s <= position; ++s) {
    if (!Shows(head, position, s)) continue;
    EXPECT_TRUE(cache_->Read(sequence_, head.layer, kv_head, s, k.data(), nullptr).ok());
    double dot = 0;
    for (std::int64_t d = 0; d < D; ++d) dot += double{q[d]} * double{k[d]};
    weights[s] = scale * dot;
    max = std::max(max, weights[s]);
  }
  if (max == -HUGE_VAL) return std::vector<double>(weights.size(), 0.0);
  for (double& w : weights) sum += w = std::exp(w - max);
  for (double& w : weights) w /= sum;
  return weights;
}

std::vector<double> ObservedDecoder::Attended(HeadId head,
                                              const std::vector<double>& weights) const {
  const LayerConfig& layer = config().layers[static_cast<std::size_t>(head.layer)];
  const std::int64_t Dv = layer.head_dim_v;
  const std::int64_t kv_head = head.head / (layer.num_heads / layer.num_kv_heads);
  std::vector<double> sum(static_cast<std::size_t>(Dv));
  std::vector<float> v(static_cast<std::size_t>(Dv));
  for (std::size_t s = 0; s < weights.size(); ++s) {
    if (weights[s] == 0) continue;
    EXPECT_TRUE(
        cache_
            ->Read(sequence_, head.layer, kv_head, static_cast<std::int64_t>(s), nullptr, v.data())
            .ok());
    for (std::int64_t d = 0; d < Dv; ++d) sum[d] += weights[s] * double{v[d]};
  }
  return sum;
}

}  // namespace manyhead::testing
