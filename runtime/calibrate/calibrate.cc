#include "manyhead/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "manyhead/threads.h"
#include "runtime/calibrate/choose.h"
#include "runtime/calibrate/head_errors.h"
#include "runtime/calibrate/head_options.h"
#include "runtime/calibrate/text_scorer.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

using Heads = std::vector<std::vector<KvHeadParams>>;
using Nll = std::vector<double>;  ///< [token]; empty when a pass was ended early

constexpr const char* kName = "CalibrateKv";
constexpr std::int64_t kLeastContext = 256;
constexpr std::int64_t kMostContext = std::int64_t{1} << 31;
constexpr std::int64_t kDefaultContext = 8192;
constexpr std::int64_t kLeastProbe = 64;
constexpr std::int64_t kSampledQueries = 64;
/// Factors on the estimated loss of evicted tokens: the first combination evicts no token that a
/// query sees, the others evict fewer and fewer tokens.
constexpr double kDistrust[] = {std::numeric_limits<double>::infinity(), 1, 8, 64};
constexpr std::int64_t kMostCandidates = std::size(kDistrust);
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
/// Keys that are hidden anyway cause an error of rounding alone.
constexpr double kNoError = 1e-10;
/// The cost of a head is at least this share of the median: the noise of a probe may hide it.
constexpr double kLeastCost = 0.25;
constexpr KvHeadParams kProbe = {KvType::kInt4, KvType::kInt4, {}};

/// Returns true where the loss of predicting token i + 1 takes no part in the choice.
bool HeldOut(std::size_t i) { return i / 64 % 3 == 2; }

/// Returns the rise in loss that the changes of the tokens' losses stand for. For small changes,
/// whose signs say more about the text than about the cache, it is half the mean square: to second
/// order the rise in loss over all texts. A token counts at most the change of its loss.
double EstimateRise(const Nll& before, const Nll& after) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (HeldOut(i)) continue;
    const double change = std::abs(after[i] - before[i]);
    sum += change < 1 ? change * change / 2 : change - 0.5;
    ++count;
  }
  return sum / static_cast<double>(count);
}

KvLoss MeanLoss(const Nll& nll, std::int64_t bytes) {
  double sum[2] = {}, count[2] = {};
  for (std::size_t i = 0; i < nll.size(); ++i) {
    sum[HeldOut(i)] += nll[i];
    ++count[HeldOut(i)];
  }
  return {bytes, (sum[0] + sum[1]) / (count[0] + count[1]), sum[0] / count[0], sum[1] / count[1]};
}

class Search {
 public:
  Search(const Model& model, std::span<const TokenId> ids, const CalibrateOptions& options)
      : model_(model), ids_(ids), options_(options) {}

  Result<Calibration> Run();

 private:
  const std::vector<LayerConfig>& layers() const { return model_.config().layers; }
  Heads AllHeads(const KvHeadParams& head) const;
  Result<std::int64_t> BytesOf(const Heads& heads) const;
  bool Cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
  bool AfterStep(std::int64_t tokens);

  Status CheckOptions();
  Status CheckText();
  Status MakeOptions();
  Status CheckBudget();
  Status MeasureErrors();
  Status MeasureBefore();
  Status ProbeHeads();
  void CompleteCosts();
  double LossOf(std::size_t layer, std::size_t head, std::size_t option, double distrust) const;
  Result<std::optional<Heads>> Solve(double distrust, double* estimate) const;
  Status TryMix(const Heads& heads, double estimate);
  Status TryMixes();

  const Model& model_;
  std::span<const TokenId> ids_;
  CalibrateOptions options_;
  Calibration result_;
  DecoderLimits limits_;
  std::optional<TextScorer> scorer_;
  std::vector<LayerOptions> layer_options_;      // [layer]
  std::vector<std::vector<HeadErrors>> errors_;  // [layer][KV head]
  /// [layer][KV head] rise in loss per error of attention's output; negative: not measured.
  std::vector<std::vector<double>> costs_;
  Heads smallest_;              ///< every head in its smallest form
  std::int64_t off_bytes_ = 0;  ///< bytes of a cache whose heads are all off
  std::int64_t total_tokens_ = 0;
  Nll exact_;         ///< losses with f32 and every token
  double noise_ = 0;  ///< apparent rise with f16, caused by rounding in the products
};

Heads Search::AllHeads(const KvHeadParams& head) const {
  Heads heads;
  for (const LayerConfig& layer : layers())
    heads.emplace_back(static_cast<std::size_t>(layer.num_kv_heads), head);
  return heads;
}

Result<std::int64_t> Search::BytesOf(const Heads& heads) const {
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model_.config());
  params.heads = heads;
  return KvCapacityBytes(params, 1, options_.context, options_.chunk);
}

bool Search::AfterStep(std::int64_t tokens) {
  result_.evaluated_tokens += tokens;
  if (options_.on_progress) options_.on_progress(result_.evaluated_tokens, total_tokens_);
  return !Cancelled();
}

Status Search::CheckOptions() {
  const bool by_bytes = options_.budget_bytes != 0, by_fraction = options_.budget_fraction != 0;
  if (by_bytes == by_fraction || options_.budget_bytes < 0 || !(options_.budget_fraction >= 0) ||
      !std::isfinite(options_.budget_fraction))
    return InvalidArgument(kName, "budget_bytes = ", options_.budget_bytes,
                           ", budget_fraction = ", options_.budget_fraction,
                           "; expected one of them above 0, the other 0");
  if (options_.types.empty())
    options_.types = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4};
  for (const KvType type : options_.types)
    if (type > KvType::kInt4)
      return InvalidArgument(kName, "types has ", static_cast<int>(type),
                             "; expected 0..4 (f32, f16, bf16, int8, int4)");
  std::sort(options_.types.begin(), options_.types.end());
  options_.types.erase(std::unique(options_.types.begin(), options_.types.end()),
                       options_.types.end());
  if (options_.chunk < 1 || options_.chunk > kMostContext)
    return InvalidArgument(kName, "chunk = ", options_.chunk, "; expected 1..", kMostContext);
  if (options_.probe_tokens < kLeastProbe)
    return InvalidArgument(kName, "probe_tokens = ", options_.probe_tokens, "; expected at least ",
                           kLeastProbe);
  constexpr int kMostThreads = 1024;
  if (options_.threads < 0 || options_.threads > kMostThreads)
    return InvalidArgument(kName, "threads = ", options_.threads, "; expected 0..", kMostThreads);
  if (options_.threads == 0) options_.threads = DefaultThreads();
  return Status();
}

Status Search::CheckText() {
  const auto size = static_cast<std::int64_t>(ids_.size());
  if (options_.context != 0 &&
      (options_.context < kLeastContext || options_.context > kMostContext))
    return InvalidArgument(kName, "context = ", options_.context, "; expected 0, or ",
                           kLeastContext, "..", kMostContext);
  const std::int64_t least = std::max(options_.context, kLeastContext);
  if (size < least)
    return InvalidArgument(kName, "the text has ", size, " tokens; expected at least ", least,
                           options_.context > kLeastContext ? ", the context" : "");
  if (options_.context == 0)
    options_.context = std::min(
        size, std::max(kLeastContext, std::min(model_.config().context_length, kDefaultContext)));
  ids_ = ids_.first(static_cast<std::size_t>(options_.context));
  for (std::size_t i = 0; i < ids_.size(); ++i)
    if (ids_[i] < 0 || ids_[i] >= model_.config().vocab_size)
      return InvalidArgument(kName, "ids[", i, "] = ", ids_[i], "; expected 0..",
                             model_.config().vocab_size - 1);
  options_.chunk = std::min(options_.chunk, options_.context);
  options_.probe_tokens = std::min(options_.probe_tokens, options_.context);
  result_.context = options_.context;
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i)
    ++(HeldOut(i) ? result_.held_out_tokens : result_.fit_tokens);
  std::int64_t num_heads = 0;
  for (const LayerConfig& layer : layers()) num_heads += layer.num_kv_heads;
  total_tokens_ = (2 + kMostCandidates) * options_.context + num_heads * options_.probe_tokens;
  return Status();
}

Status Search::MakeOptions() {
  for (const LayerConfig& layer : layers()) {
    Result<LayerOptions> made =
        MakeLayerOptions(layer, options_.types, options_.context, options_.chunk, options_.evict);
    if (!made.ok()) return made.status();
    layer_options_.push_back(*std::move(made));
  }
  const Result<std::int64_t> off = BytesOf(AllHeads({KvType::kF16, KvType::kF16, KvPolicy::Off()}));
  if (!off.ok()) return off.status();
  off_bytes_ = *off;
  return Status();
}

Status Search::CheckBudget() {
  const Result<std::int64_t> full = BytesOf(AllHeads({}));
  if (!full.ok()) return full.status();
  result_.before.bytes = *full;
  const double bytes = options_.budget_fraction * static_cast<double>(*full);
  constexpr double kMost = 0x1p62;
  result_.budget_bytes = options_.budget_bytes != 0
                             ? options_.budget_bytes
                             : static_cast<std::int64_t>(std::min(bytes, kMost));
  smallest_ = AllHeads({});
  for (std::size_t l = 0; l < smallest_.size(); ++l) {
    const std::vector<std::int64_t>& sizes = layer_options_[l].bytes;
    const auto least = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
    for (KvHeadParams& head : smallest_[l])
      head = layer_options_[l].params[static_cast<std::size_t>(least)];
  }
  const Result<std::int64_t> least = BytesOf(smallest_);
  if (!least.ok()) return least.status();
  if (result_.budget_bytes < *least)
    return InvalidArgument(kName, "a budget of ", result_.budget_bytes, " bytes; ",
                           options_.context, " tokens take at least ", *least,
                           " with these types and policies, ", *full, " in f16");
  return Status();
}

/// Runs the pass that all estimates are based on.
Status Search::MeasureErrors() {
  QuerySample sample = QuerySample::Make(model_.config(), options_.context, kSampledQueries);
  Result<SequenceCache> cache =
      scorer_->MakeCache(AllHeads({KvType::kF32, KvType::kF32, {}}), options_.context);
  if (!cache.ok()) return cache.status();
  scorer_->SetQueryTap([&](std::size_t layer, std::int64_t position, std::int64_t rows,
                           const float* query) { sample.Take(layer, position, rows, query); });
  Result<Nll> nll = scorer_->Score(*cache, options_.context);
  scorer_->SetQueryTap(nullptr);
  if (!nll.ok()) return nll.status();
  exact_ = *std::move(nll);
  for (std::size_t l = 0; l < layers().size() && !Cancelled(); ++l) {
    Result<std::vector<HeadErrors>> errors =
        MeasureHeadErrors(model_.config(), *cache, l, sample, layer_options_[l].policies, limits_);
    if (!errors.ok()) return errors.status();
    errors_.push_back(*std::move(errors));
  }
  return Status();
}

Status Search::MeasureBefore() {
  const Result<Nll> nll = Cancelled() ? Nll() : scorer_->Score(AllHeads({}), options_.context);
  if (!nll.ok()) return nll.status();
  if (nll->empty())
    return Status(StatusCode::kIoError,
                  "CalibrateKv: interrupted before the loss with f16 was known");
  result_.before = MeanLoss(*nll, result_.before.bytes);
  noise_ = EstimateRise(exact_, *nll);
  return Status();
}

Status Search::ProbeHeads() {
  constexpr auto kType = static_cast<std::size_t>(KvType::kInt4);
  Heads heads = AllHeads({KvType::kF32, KvType::kF32, {}});
  for (std::size_t l = 0; l < heads.size(); ++l) {
    costs_.emplace_back(heads[l].size(), -1.0);
    for (std::size_t h = 0; h < heads[l].size(); ++h) {
      if (Cancelled()) continue;
      const KvHeadParams exact = std::exchange(heads[l][h], kProbe);
      const Result<Nll> nll = scorer_->Score(heads, options_.probe_tokens);
      if (!nll.ok()) return nll.status();
      heads[l][h] = exact;
      if (nll->empty()) continue;
      const double rise = std::max(0.0, EstimateRise(exact_, *nll) - noise_);
      const double error = errors_[l][h].k_type[kType] + errors_[l][h].v_type[kType];
      if (error > 0 && std::isfinite(error)) costs_[l][h] = rise / error;
    }
  }
  return Status();
}

/// Gives heads without a measured cost the median of the others, and raises costs that are
/// implausibly low.
void Search::CompleteCosts() {
  std::vector<double> known;
  for (const std::vector<double>& layer : costs_)
    for (const double cost : layer)
      if (cost >= 0) known.push_back(cost);
  double median = 1;
  if (!known.empty()) {
    const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
    std::nth_element(known.begin(), middle, known.end());
    median = std::max(*middle, 1e-6);
  }
  for (std::vector<double>& layer : costs_)
    for (double& cost : layer) cost = cost < 0 ? median : std::max(cost, kLeastCost * median);
}

double Search::LossOf(std::size_t layer, std::size_t head, std::size_t option,
                      double distrust) const {
  const LayerOptions& options = layer_options_[layer];
  const HeadErrors& errors = errors_[layer][head];
  const KvHeadParams& params = options.params[option];
  const double evicted = errors.policy[options.policy[option]];
  double error = evicted < kNoError ? 0 : evicted * distrust;
  if (params.policy.kind != KvPolicyKind::kOff)
    error += errors.k_type[static_cast<std::size_t>(params.k_type)] +
             errors.v_type[static_cast<std::size_t>(params.v_type)];
  return costs_[layer][head] * error;
}

/// Returns the best combination by the estimates; nothing where the budget is too small for any.
Result<std::optional<Heads>> Search::Solve(double distrust, double* estimate) const {
  std::vector<std::vector<PricedOption>> priced;
  for (std::size_t l = 0; l < errors_.size(); ++l)
    for (std::size_t h = 0; h < errors_[l].size(); ++h) {
      std::vector<PricedOption>& options = priced.emplace_back();
      for (std::size_t i = 0; i < layer_options_[l].params.size(); ++i)
        options.push_back({layer_options_[l].bytes[i], LossOf(l, h, i, distrust)});
    }
  // The tables of the pool grow with all pages together, so the sum over heads is only a close
  // estimate.
  for (std::int64_t budget = result_.budget_bytes - off_bytes_;;) {
    const auto chosen = ChooseOptions(priced, budget);
    if (!chosen.has_value()) return std::optional<Heads>();
    Heads heads = AllHeads({});
    *estimate = 0;
    std::size_t i = 0;
    for (std::size_t l = 0; l < heads.size(); ++l)
      for (std::size_t h = 0; h < heads[l].size(); ++h, ++i) {
        heads[l][h] = layer_options_[l].params[(*chosen)[i]];
        *estimate += LossOf(l, h, (*chosen)[i], 1);
      }
    const Result<std::int64_t> bytes = BytesOf(heads);
    if (!bytes.ok()) return bytes.status();
    if (*bytes <= result_.budget_bytes) return std::optional<Heads>(std::move(heads));
    budget -= *bytes - result_.budget_bytes;
  }
}

Status Search::TryMix(const Heads& heads, double estimate) {
  const Result<std::int64_t> bytes = BytesOf(heads);
  if (!bytes.ok()) return bytes.status();
  const Result<Nll> nll = Cancelled() ? Nll() : scorer_->Score(heads, options_.context);
  if (!nll.ok()) return nll.status();
  const bool scored = !nll->empty();
  const KvLoss loss = scored ? MeanLoss(*nll, *bytes) : KvLoss{*bytes, kNan, kNan, kNan};
  if (scored) result_.candidates.push_back(loss);
  const bool better = scored && (!result_.verified || loss.fit_nll < result_.after.fit_nll);
  if (!better && !result_.heads.empty()) return Status();
  result_.heads = heads;
  result_.after = loss;
  result_.estimated_rise = estimate;
  result_.verified = scored;
  return Status();
}

Status Search::TryMixes() {
  std::vector<Heads> tried;
  for (const double distrust : kDistrust) {
    double estimate = 0;
    const Result<std::optional<Heads>> solved = Solve(distrust, &estimate);
    if (!solved.ok()) return solved.status();
    if (!solved->has_value()) continue;
    if (std::find(tried.begin(), tried.end(), **solved) != tried.end()) continue;
    tried.push_back(**solved);
    if (Status status = TryMix(**solved, estimate); !status.ok()) return status;
    if (Cancelled()) break;
  }
  // The budget is so close to the least that the estimated bytes leave no choice.
  return tried.empty() ? TryMix(smallest_, kNan) : Status();
}

Result<Calibration> Search::Run() {
  if (Status status = CheckOptions(); !status.ok()) return status;
  if (Status status = CheckText(); !status.ok()) return status;
  if (Status status = MakeOptions(); !status.ok()) return status;
  if (Status status = CheckBudget(); !status.ok()) return status;
  if (!options_.isa) {
    Result<Isa> isa = SelectIsa();
    if (!isa.ok()) return isa.status();
    options_.isa = *isa;
  }
  limits_ = {.max_rows = options_.chunk,
             .max_tokens = options_.context,
             .threads = options_.threads,
             .isa = *options_.isa,
             .math = options_.math};
  Result<TextScorer> scorer = TextScorer::Create(
      model_, ids_, limits_, [this](std::int64_t tokens) { return AfterStep(tokens); });
  if (!scorer.ok()) return scorer.status();
  scorer_.emplace(*std::move(scorer));
  if (Status status = MeasureErrors(); !status.ok()) return status;
  if (Status status = MeasureBefore(); !status.ok()) return status;
  if (Status status = ProbeHeads(); !status.ok()) return status;
  CompleteCosts();
  if (Status status = TryMixes(); !status.ok()) return status;
  result_.interrupted = Cancelled();
  return std::move(result_);
}

}  // namespace

Result<Calibration> CalibrateKv(const Model& model, std::span<const TokenId> ids,
                                const CalibrateOptions& options) {
  return Search(model, ids, options).Run();
}

}  // namespace manyhead
