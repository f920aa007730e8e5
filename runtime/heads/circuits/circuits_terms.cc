#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "manyhead/circuits.h"
#include "manyhead/threads.h"
#include "runtime/cache/sequence_cache.h"
#include "runtime/heads/circuits/circuits_impl.h"
#include "runtime/linear/linear.h"
#include "runtime/model/decoder.h"
#include "runtime/model/weights.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"

namespace manyhead {
namespace {

constexpr const char* kName = "MeasureTerms";

using RowsF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsMap = Eigen::Map<const RowsF, 0, Eigen::OuterStride<>>;

/// Copies the heads' results before and after the output projection, for every layer of one text.
class OutputTap : public AttentionTap {
 public:
  OutputTap(const ModelConfig& config, std::int64_t tokens) : d_(config.d_model) {
    for (const LayerConfig& layer : config.layers) {
      width_.push_back(layer.num_heads * layer.head_dim_v);
      attended_.emplace_back(static_cast<std::size_t>(tokens * width_.back()));
      projected_.emplace_back(static_cast<std::size_t>(tokens * d_));
    }
  }

  void Observe(Worker& worker, const AttentionStep& step) noexcept override {
    const auto layer = static_cast<std::size_t>(step.layer);
    const std::int64_t width = width_[layer];
    worker.ForEach(step.rows, [&](std::int64_t row) {
      const std::int64_t to = step.position + row;
      std::copy_n(step.attended + row * width, width, attended_[layer].data() + to * width);
      std::copy_n(step.projected + row * d_, d_, projected_[layer].data() + to * d_);
    });
  }
  std::int64_t* head_times() noexcept override { return nullptr; }
  std::int64_t head_times_stride() const noexcept override { return 0; }

  const float* attended(std::size_t layer) const { return attended_[layer].data(); }
  const float* projected(std::size_t layer) const { return projected_[layer].data(); }

 private:
  std::int64_t d_;
  std::vector<std::int64_t> width_;
  std::vector<std::vector<float>> attended_, projected_;  // [layer][T, width], [T, d]
};

Status CheckIds(const ModelConfig& config, std::span<const TokenId> ids) {
  const std::int64_t most = std::min(kMostTermTokens, config.context_length);
  const auto size = static_cast<std::int64_t>(ids.size());
  if (size < 1 || size > most)
    return InvalidArgument(kName, "tokens = ", size, "; expected 1..", most);
  for (const TokenId id : ids)
    if (id < 0 || id >= config.vocab_size)
      return InvalidArgument(kName, "id = ", id, "; expected 0..", config.vocab_size - 1);
  return Status();
}

Result<DecoderLimits> MakeLimits(const TermOptions& options, std::int64_t tokens) {
  if (options.threads < 0 || options.threads > kMaxThreads)
    return InvalidArgument(kName, "threads = ", options.threads, "; expected 0..", kMaxThreads);
  const Result<Isa> isa = ResolveIsa(kName, options.isa);
  if (!isa.ok()) return isa.status();
  return DecoderLimits{tokens, tokens, options.threads == 0 ? DefaultThreads() : options.threads,
                       *isa, options.math};
}

Status RunText(const Model& model, std::span<const TokenId> ids, const DecoderLimits& limits,
               OutputTap& tap) {
  Result<Decoder> decoder = Decoder::Create(model.impl(), limits);
  if (!decoder.ok()) return decoder.status();
  decoder->AllowTaps(true);
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model.config());
  params.k_type = params.v_type = KvType::kF32;
  params.max_tokens = limits.max_tokens;
  params.isa = limits.isa;
  Result<SequenceCache> cache = CreateSequenceCache(std::move(params), limits.max_rows);
  if (!cache.ok()) return cache.status();
  if (Status status = cache->cache.Reserve(cache->sequence, limits.max_rows); !status.ok())
    return status;
  SequenceStep step(cache->cache, cache->sequence, ids, RowRole::kPrefill);
  step.sequence.attention_tap = &tap;
  return decoder->Step(cache->cache, step.Batch());
}

RowsF ReadRows(const WeightView& weight) {
  RowsF rows(weight.rows, weight.cols);
  for (std::int64_t i = 0; i < weight.rows; ++i)
    DequantizeRow(weight, Isa::kScalar, i, rows.row(i).data());
  return rows;
}

/// Applies a norm after attention to a head's projected rows: its weights by column, its factor by
/// row.
void NormTerms(const LayerWeights& w, const RowsF& projected, float eps, RowsF& term) {
  if (w.post_attention_norm.kind == NormKind::kNone) return;
  const Eigen::Map<const Eigen::RowVectorXf> weights(
      w.post_attention_norm.scale.data(),
      static_cast<Eigen::Index>(w.post_attention_norm.scale.size()));
  for (Eigen::Index t = 0; t < term.rows(); ++t) {
    const float rms =
        std::sqrt(projected.row(t).squaredNorm() / static_cast<float>(projected.cols()) + eps);
    term.row(t) = term.row(t).cwiseProduct(weights) / rms;
  }
}

std::int64_t HeadsFor(double share, const std::vector<HeadTerm>& heads) {
  std::vector<double> shares;
  for (const HeadTerm& head : heads) shares.push_back(head.share);
  std::sort(shares.begin(), shares.end(), std::greater<>());
  double sum = 0;
  std::int64_t count = 0;
  for (const double part : shares) {
    if (sum >= share) break;
    sum += part;
    ++count;
  }
  return count;
}

LayerTerms TermsOf(const Model& model, std::size_t index, std::int64_t tokens,
                   const OutputTap& tap) {
  const LayerConfig& shape = model.config().layers[index];
  const LayerWeights& w = model.impl().weights.layers[index];
  const std::int64_t Dv = shape.head_dim_v, width = shape.num_heads * Dv;
  const RowsF weight = ReadRows(w.output);
  const RowsF projected = Eigen::Map<const RowsF>(tap.projected(index), tokens, weight.rows());
  std::vector<RowsF> terms;
  RowsF sum = RowsF::Zero(tokens, weight.rows());
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    const RowsMap attended(tap.attended(index) + h * Dv, tokens, Dv, Eigen::OuterStride<>(width));
    terms.emplace_back(attended * weight.middleCols(h * Dv, Dv).transpose());
    sum += terms.back();
  }
  LayerTerms result;
  result.layer = static_cast<std::int64_t>(index);
  RowsF rest = projected - sum;
  for (Eigen::Index i = 0; i < static_cast<Eigen::Index>(w.output_bias.size()); ++i)
    rest.col(i).array() -= w.output_bias[static_cast<std::size_t>(i)];
  const float largest = projected.cwiseAbs().maxCoeff();
  result.difference = largest > 0 ? static_cast<double>(rest.cwiseAbs().maxCoeff() / largest) : 0;

  const float eps = model.config().norm_eps;
  NormTerms(w, projected, eps, sum);
  const double total = sum.cast<double>().squaredNorm();
  result.norm = std::sqrt(total / static_cast<double>(tokens));
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    RowsF& term = terms[static_cast<std::size_t>(h)];
    NormTerms(w, projected, eps, term);
    HeadTerm head{{result.layer, h}, 0, 0};
    if (total > 0) {
      head.share = term.cast<double>().cwiseProduct(sum.cast<double>()).sum() / total;
      head.norm = std::sqrt(term.cast<double>().squaredNorm() / total);
    }
    result.heads.push_back(head);
  }
  result.heads_for_90 = HeadsFor(0.9, result.heads);
  return result;
}

}  // namespace

Result<std::vector<LayerTerms>> MeasureTerms(const Model& model, std::span<const TokenId> ids,
                                             const TermOptions& options) {
  if (Status status = CheckIds(model.config(), ids); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const Result<DecoderLimits> limits = MakeLimits(options, tokens);
  if (!limits.ok()) return limits.status();
  OutputTap tap(model.config(), tokens);
  if (Status status = RunText(model, ids, *limits, tap); !status.ok()) return status;
  std::vector<LayerTerms> layers;
  for (std::size_t layer = 0; layer < model.config().layers.size(); ++layer)
    layers.push_back(TermsOf(model, layer, tokens, tap));
  return layers;
}

}  // namespace manyhead
