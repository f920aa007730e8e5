#include "runtime/heads/observe/head_profiler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

constexpr std::int64_t kCacheLine = 8;  // numbers of 64 bits, so that threads do not share one

/// The largest numbers of heads in any layer.
struct MaxHeadCounts {
  std::int64_t heads = 0, kv_heads = 0, group = 0;
};

MaxHeadCounts MaxHeadCountsOf(const ModelConfig& config) {
  MaxHeadCounts widest;
  for (const LayerConfig& layer : config.layers) {
    widest.heads = std::max(widest.heads, layer.num_heads);
    widest.kv_heads = std::max(widest.kv_heads, layer.num_kv_heads);
    widest.group = std::max(widest.group, layer.num_heads / layer.num_kv_heads);
  }
  return widest;
}

/// Adds one row to the means.
void AddRow(const RowStats& row, HeadStats& head) noexcept {
  if (!row.sees_keys) return;
  ++head.rows;
  const auto add = [&](double x, double& mean) {
    mean += (x - mean) / static_cast<double>(head.rows);
  };
  add(row.entropy, head.entropy);
  add(row.sink_mass, head.sink_mass);
  add(row.recent_mass, head.recent_mass);
  add(row.mean_distance, head.mean_distance);
  add(row.median_distance, head.median_distance);
  add(row.max_weight, head.max_weight);
  add(row.output_norm, head.output_norm);
}

}  // namespace

Status HeadProfiler::Check(const HeadProfileOptions& options, const char* function) {
  const struct {
    const char* name;
    std::int64_t value, least;
  } checks[] = {{"every", options.every, 1},
                {"sink_tokens", options.sink_tokens, 0},
                {"recent", options.recent, 1}};
  for (const auto& [name, value, least] : checks) {
    if (value >= least) continue;
    return InvalidArgument(function, name, " = ", value, "; expected ", least, " or more");
  }
  return {};
}

Result<HeadProfiler> HeadProfiler::Create(const Model::Impl& model, const Limits& limits,
                                          const HeadProfileOptions& options, HeadProfile* profile) {
  Result<OutputGrams> grams = OutputGrams::Create(model, limits.isa, limits.threads);
  if (!grams.ok()) return grams.status();
  HeadProfiler made(model, limits, *std::move(grams), options, profile);
  HeadProfile empty;
  empty.options = options;
  for (const LayerConfig& layer : model.config.layers)
    empty.heads.emplace_back(static_cast<std::size_t>(layer.num_heads));
  *profile = std::move(empty);
  return made;
}

HeadProfiler::HeadProfiler(const Model::Impl& model, const Limits& limits, OutputGrams grams,
                           const HeadProfileOptions& options, HeadProfile* profile)
    : model_(&model),
      profile_(profile),
      threads_(limits.threads),
      grams_(std::move(grams)),
      row_stride_(limits.context) {
  const MaxHeadCounts widest = MaxHeadCountsOf(model.config);
  times_stride_ = RoundUp(widest.kv_heads, kCacheLine);
  times_.resize(static_cast<std::size_t>(threads_ * times_stride_));
  thread_stride_ = widest.group * row_stride_;
  rows_ = AlignedBuffer<float>(threads_ * thread_stride_);
  entropy_stride_ = RoundUp(widest.group, 2 * kCacheLine);
  entropies_.resize(static_cast<std::size_t>(threads_ * entropy_stride_));
  sampled_.resize(static_cast<std::size_t>((limits.max_rows / options.every + 1) * widest.heads));
}

void HeadProfiler::Observe(Worker& worker, const AttentionStep& step) noexcept {
  const std::int64_t H = step.plan->params().num_heads, K = step.plan->params().num_kv_heads;
  std::vector<HeadStats>& heads = profile_->heads[static_cast<std::size_t>(step.layer)];
  if (worker.index() == 0) AddCosts(step, heads);
  // The positions i where i + 1 is a multiple of `every`; `before` of them precede the step.
  const std::int64_t every = profile_->options.every;
  const std::int64_t before = step.position / every;
  const std::int64_t count = (step.position + step.rows) / every - before;
  if (count == 0) return;
  worker.ForEach(count * K, [&](std::int64_t i) {
    const std::int64_t position = (before + 1 + i / K) * every - 1, kv_head = i % K;
    LookAt(worker.index(), step, position, kv_head, &sampled_[(i / K) * H + kv_head * (H / K)]);
  });
  if (worker.index() != 0) return;
  for (std::int64_t i = 0; i < count * H; ++i) AddRow(sampled_[i], heads[i % H]);
}

void HeadProfiler::AddCosts(const AttentionStep& step, std::vector<HeadStats>& heads) noexcept {
  if (step.layer == 0) {
    ++profile_->steps;
    profile_->tokens += step.rows;
  }
  const std::int64_t K = step.plan->params().num_kv_heads;
  const auto group = std::ssize(heads) / K;
  for (std::int64_t k = 0; k < K; ++k) {
    std::int64_t nanoseconds = 0;
    for (int thread = 0; thread < threads_; ++thread)
      nanoseconds += std::exchange(times_[thread * times_stride_ + k], 0);
    const auto bytes = static_cast<double>(step.BytesSeen(k));
    for (std::int64_t h = k * group; h < (k + 1) * group; ++h) {
      heads[h].seconds += static_cast<double>(nanoseconds) * 1e-9 / static_cast<double>(group);
      heads[h].kv_bytes += bytes / static_cast<double>(group);
    }
  }
}

/// Computes stats [G] of the heads that share `kv_head`.
void HeadProfiler::LookAt(int thread, const AttentionStep& step, std::int64_t position,
                          std::int64_t kv_head, RowStats* stats) noexcept {
  const AttentionParams& params = step.plan->params();
  const std::int64_t group = params.num_heads / params.num_kv_heads, Dv = params.head_dim_v;
  const std::int64_t row = position - step.position;
  float* weights = rows_.data() + thread * thread_stride_;
  float* entropy = entropies_.data() + thread * entropy_stride_;
  const SeenKeys seen = step.WeightsOf(thread, kv_head, row, {weights, row_stride_, 0, entropy});
  const double factor = NormFactor(step, row);
  for (std::int64_t g = 0; g < group; ++g) {
    const std::int64_t head = kv_head * group + g;
    stats[g] = StatsOfRow(weights + g * row_stride_, seen, position, profile_->options);
    stats[g].entropy = double{entropy[g]};
    stats[g].output_norm =
        factor *
        grams_.Norm(step.layer, head, step.attended + (row * params.num_heads + head) * Dv);
  }
}

/// Returns the inverse of the divisor of the norm after attention, if there is one.
double HeadProfiler::NormFactor(const AttentionStep& step, std::int64_t row) const noexcept {
  const auto& w = model_->weights.layers[static_cast<std::size_t>(step.layer)];
  if (w.post_attention_norm.kind == NormKind::kNone) return 1;
  const std::int64_t d = model_->config.d_model;
  const float* x = step.projected + row * d;
  double square = 0;
  for (std::int64_t i = 0; i < d; ++i) square += double{x[i]} * double{x[i]};
  return 1 / std::sqrt(square / static_cast<double>(d) + double{model_->config.norm_eps});
}

}  // namespace manyhead
