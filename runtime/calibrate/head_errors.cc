#include "runtime/calibrate/head_errors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "manyhead/attention.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

/// Keys [S, K, D] and values [S, K, Dv] of one layer.
struct Rows {
  std::vector<float> k, v;
};

Status ReadRows(const KvCache& cache, SequenceId sequence, std::int64_t layer,
                const KvLayerShape& shape, Rows* rows) {
  const std::int64_t tokens = cache.length(sequence);
  const std::int64_t head_dim_v = shape.head_dim_v;
  rows->k.resize(static_cast<std::size_t>(tokens * shape.num_kv_heads * shape.head_dim));
  rows->v.resize(static_cast<std::size_t>(tokens * shape.num_kv_heads * head_dim_v));
  for (std::int64_t s = 0; s < tokens; ++s)
    for (std::int64_t h = 0; h < shape.num_kv_heads; ++h) {
      const std::int64_t row = s * shape.num_kv_heads + h;
      Status status = cache.Read(sequence, layer, h, s, rows->k.data() + row * shape.head_dim,
                                 rows->v.data() + row * head_dim_v);
      if (!status.ok()) return status;
    }
  return Status();
}

/// Rounds `rows` as `type` stores them.
Status RoundRows(const KvLayerShape& shape, KvType type, std::int64_t tokens, Isa isa,
                 const Rows& rows, Rows* rounded) {
  KvCacheParams params;
  params.layers = {shape};
  params.k_type = params.v_type = type;
  params.max_tokens = tokens;
  params.isa = isa;
  Result<SequenceCache> made = CreateSequenceCache(std::move(params), 0);
  if (!made.ok()) return made.status();
  if (Status status = made->cache.Reserve(made->sequence, tokens); !status.ok()) return status;
  Status status = made->cache.Write(made->sequence, 0, 0, tokens, rows.k.data(), rows.v.data());
  return status.ok() ? ReadRows(made->cache, made->sequence, 0, shape, rounded) : status;
}

/// Attention of the sampled queries of one layer over different keys and values.
class SampledAttention {
 public:
  using Mask = std::vector<std::uint8_t>;  ///< [query][query head or 1][key]

  SampledAttention(const LayerConfig& layer, const QuerySample& sample, std::size_t index,
                   std::int64_t tokens)
      : layer_(layer), sample_(sample), query_(sample.layers[index]), tokens_(tokens) {
    for (const std::int64_t position : sample.positions) kv_lens_.push_back(position + 1);
    lse_.resize(sample.positions.size() * static_cast<std::size_t>(layer.num_heads));
  }

  Status Create(const ModelConfig& config, const DecoderLimits& limits) {
    AttentionParams params = AttentionParamsOf(config, layer_, limits);
    params.max_q_len = queries();
    params.max_kv_len = tokens_;
    Result<AttentionPlan> plan = AttentionPlan::Create(params);
    if (!plan.ok()) return plan.status();
    plan_.emplace(*std::move(plan));
    return Status();
  }

  /// Computes the output [query][H * Dv]. `mask` may be null.
  Status Run(const std::vector<float>& k, const std::vector<float>& v, const Mask* mask,
             std::vector<float>* out) {
    out->resize(static_cast<std::size_t>(queries() * layer_.num_heads * layer_.head_dim_v));
    AttentionTensors tensors = Tensors(k, v);
    tensors.out = {out->data(), layer_.num_heads * layer_.head_dim_v,
                   layer_.num_heads * layer_.head_dim_v, layer_.head_dim_v};
    if (mask != nullptr) {
      const bool by_head = static_cast<std::int64_t>(mask->size()) > queries() * tokens_;
      const std::int64_t heads = by_head ? layer_.num_heads : 1;
      tensors.bias.mask = {mask->data(), tokens_, heads * tokens_, by_head ? tokens_ : 0, 0};
    }
    return plan_->Run(tensors);
  }

  /// Computes the softmax weights [query][H][key] of the last Run, over the same keys.
  Status Weights(const std::vector<float>& k, const std::vector<float>& v,
                 std::vector<float>* weights) {
    weights->resize(static_cast<std::size_t>(queries() * layer_.num_heads * tokens_));
    return plan_->Weights(Tensors(k, v), LogitStage::kProbs, weights->data());
  }

  std::int64_t queries() const noexcept {
    return static_cast<std::int64_t>(sample_.positions.size());
  }

 private:
  AttentionTensors Tensors(const std::vector<float>& k, const std::vector<float>& v) {
    AttentionTensors tensors;
    tensors.batch = queries();
    tensors.q_len = 1;
    tensors.kv_len = tokens_;
    tensors.kv_lens = kv_lens_.data();
    const std::int64_t q_row = layer_.num_heads * layer_.head_dim;
    tensors.q = {query_.data(), q_row, q_row, layer_.head_dim};
    // All queries share the keys and values of one sequence: the batch stride is 0.
    tensors.k = {k.data(), 0, layer_.num_kv_heads * layer_.head_dim, layer_.head_dim};
    tensors.v = {v.data(), 0, layer_.num_kv_heads * layer_.head_dim_v, layer_.head_dim_v};
    tensors.lse = {lse_.data(), layer_.num_heads, layer_.num_heads, 1};
    return tensors;
  }

  const LayerConfig& layer_;
  const QuerySample& sample_;
  const std::vector<float>& query_;
  std::int64_t tokens_;
  std::vector<std::int64_t> kv_lens_;
  std::vector<float> lse_;
  std::optional<AttentionPlan> plan_;
};

/// Returns, for each KV head, the mean square of out - exact divided by that of exact.
std::vector<double> Compare(const LayerConfig& layer, const std::vector<float>& exact,
                            const std::vector<float>& out) {
  const auto heads = static_cast<std::size_t>(layer.num_kv_heads);
  const auto width = static_cast<std::size_t>(layer.num_heads / layer.num_kv_heads *
                                              // Elements of one KV head's queries.
                                              layer.head_dim_v);
  std::vector<double> change(heads), whole(heads), errors;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const std::size_t head = i / width % heads;
    const double difference = static_cast<double>(out[i]) - static_cast<double>(exact[i]);
    change[head] += difference * difference;
    whole[head] += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    const double error = change[h] == 0 ? 0 : change[h] / whole[h];
    errors.push_back(std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
  }
  return errors;
}

/// Returns the keys that the sampled queries see under a window, or sinks and a window.
SampledAttention::Mask WindowMask(const KvPolicy& policy, const QuerySample& sample,
                                  std::int64_t tokens) {
  SampledAttention::Mask mask;
  mask.reserve(sample.positions.size() * static_cast<std::size_t>(tokens));
  for (const std::int64_t position : sample.positions)
    for (std::int64_t s = 0; s < tokens; ++s)
      mask.push_back(s < policy.sink || s > position - policy.recent);
  return mask;
}

/// The groups of 16 tokens that a budget still holds of one KV head.
class HeldGroups {
 public:
  static constexpr std::int64_t kGroup = 16;

  explicit HeldGroups(std::int64_t tokens)
      : held_(static_cast<std::size_t>(CeilDiv(tokens, kGroup)), true), scores_(held_.size()) {}

  bool Holds(std::int64_t token) const { return held_[static_cast<std::size_t>(token / kGroup)]; }
  void AddScore(std::int64_t token, float weight) {
    scores_[static_cast<std::size_t>(token / kGroup)] += static_cast<double>(weight);
  }
  /// Drops the groups with the lowest scores that `policy` does not protect until the tokens before
  /// `position` fit.
  void Evict(const KvPolicy& policy, std::int64_t position) {
    std::int64_t count = 0;
    std::vector<std::size_t> open;
    for (std::size_t g = 0; g < held_.size(); ++g) {
      const std::int64_t begin = static_cast<std::int64_t>(g) * kGroup;
      if (begin >= position) break;
      if (!held_[g]) continue;
      count += std::min(kGroup, position - begin);
      if (begin >= policy.sink && begin + kGroup <= position - policy.recent) open.push_back(g);
    }
    std::stable_sort(open.begin(), open.end(),
                     [&](std::size_t a, std::size_t b) { return scores_[a] < scores_[b]; });
    for (std::size_t i = 0; i < open.size() && count > policy.budget; ++i, count -= kGroup)
      held_[open[i]] = false;
  }

 private:
  std::vector<bool> held_;
  std::vector<double> scores_;
};

/// Returns the keys that the sampled queries see under a budget, from their softmax weights over
/// all keys.
SampledAttention::Mask BudgetMask(const KvPolicy& policy, const LayerConfig& layer,
                                  const QuerySample& sample, std::int64_t tokens,
                                  const std::vector<float>& weights) {
  const std::int64_t group = layer.num_heads / layer.num_kv_heads;
  SampledAttention::Mask mask(weights.size());
  std::vector<HeldGroups> held(static_cast<std::size_t>(layer.num_kv_heads), HeldGroups(tokens));
  for (std::size_t q = 0; q < sample.positions.size(); ++q)
    for (std::int64_t h = 0; h < layer.num_kv_heads; ++h) {
      HeldGroups& groups = held[static_cast<std::size_t>(h)];
      groups.Evict(policy, sample.positions[q]);
      for (std::int64_t head = h * group; head < (h + 1) * group; ++head) {
        const std::size_t row =
            (q * static_cast<std::size_t>(layer.num_heads) + static_cast<std::size_t>(head)) *
            static_cast<std::size_t>(tokens);
        for (std::int64_t s = 0; s <= sample.positions[q]; ++s) {
          const std::size_t at = row + static_cast<std::size_t>(s);
          mask[at] = groups.Holds(s);
          if (mask[at] != 0) groups.AddScore(s, weights[at]);
        }
      }
    }
  return mask;
}

}  // namespace

QuerySample QuerySample::Make(const ModelConfig& config, std::int64_t tokens, std::int64_t count) {
  QuerySample sample;
  count = std::min(count, tokens);
  for (std::int64_t i = 1; i <= count; ++i) sample.positions.push_back(i * tokens / count - 1);
  for (const LayerConfig& layer : config.layers)
    sample.layers.emplace_back(static_cast<std::size_t>(count * layer.num_heads * layer.head_dim));
  return sample;
}

void QuerySample::Take(std::size_t layer, std::int64_t position, std::int64_t rows,
                       const float* query) {
  const std::size_t width = layers[layer].size() / positions.size();
  const auto first = std::lower_bound(positions.begin(), positions.end(), position);
  for (auto at = first; at != positions.end() && *at < position + rows; ++at) {
    const auto slot = static_cast<std::size_t>(at - positions.begin());
    std::copy_n(query + static_cast<std::size_t>(*at - position) * width, width,
                layers[layer].data() + slot * width);
  }
}

Result<std::vector<HeadErrors>> MeasureHeadErrors(const ModelConfig& config,
                                                  const SequenceCache& stored, std::size_t index,
                                                  const QuerySample& sample,
                                                  const std::vector<KvPolicy>& policies,
                                                  const DecoderLimits& limits) {
  const LayerConfig& layer = config.layers[index];
  const KvLayerShape shape = {layer.num_kv_heads, layer.head_dim, layer.head_dim_v};
  const std::int64_t tokens = stored.cache.length(stored.sequence);
  Rows rows, rounded;
  Status status =
      ReadRows(stored.cache, stored.sequence, static_cast<std::int64_t>(index), shape, &rows);
  SampledAttention attention(layer, sample, index, tokens);
  if (status.ok()) status = attention.Create(config, limits);
  std::vector<float> exact, out, weights;
  if (status.ok()) status = attention.Run(rows.k, rows.v, nullptr, &exact);
  if (status.ok()) status = attention.Weights(rows.k, rows.v, &weights);
  std::vector<HeadErrors> errors(static_cast<std::size_t>(layer.num_kv_heads));
  const auto compare = [&](auto&& place) {
    const std::vector<double> by_head = Compare(layer, exact, out);
    for (std::size_t h = 0; h < errors.size(); ++h) place(errors[h], by_head[h]);
  };
  for (std::size_t t = 1; status.ok() && t < kNumKvTypes; ++t) {
    const auto type = static_cast<KvType>(t);
    status = RoundRows(shape, type, tokens, limits.isa, rows, &rounded);
    if (status.ok()) status = attention.Run(rounded.k, rows.v, nullptr, &out);
    if (status.ok()) compare([&](HeadErrors& head, double error) { head.k_type[t] = error; });
    if (status.ok()) status = attention.Run(rows.k, rounded.v, nullptr, &out);
    if (status.ok()) compare([&](HeadErrors& head, double error) { head.v_type[t] = error; });
  }
  for (std::size_t p = 0; status.ok() && p < policies.size(); ++p) {
    const KvPolicy& policy = policies[p];
    if (policy.kind == KvPolicyKind::kFull) {
      out = exact;
    } else if (policy.kind == KvPolicyKind::kOff) {
      out.assign(exact.size(), 0);
    } else {
      const SampledAttention::Mask mask = policy.kind == KvPolicyKind::kBudget
                                              ? BudgetMask(policy, layer, sample, tokens, weights)
                                              : WindowMask(policy, sample, tokens);
      status = attention.Run(rows.k, rows.v, &mask, &out);
    }
    if (status.ok()) compare([](HeadErrors& head, double error) { head.policy.push_back(error); });
  }
  if (!status.ok()) return status;
  return errors;
}

}  // namespace manyhead
