#include "manyhead/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

Status OutOfRange(const char* name, double value, const char* expected) {
  return InvalidArgument("SamplingParams", name, " = ", std::to_string(value), "; expected ",
                         expected);
}

bool InUnit(float x) { return x >= 0 && x <= 1; }

}  // namespace

Status Validate(const SamplingParams& params) {
  if (!std::isfinite(params.temperature) || params.temperature < 0)
    return OutOfRange("temperature", static_cast<double>(params.temperature),
                      "a finite number of at least 0");
  if (params.top_k < 0) return OutOfRange("top_k", static_cast<double>(params.top_k), "at least 0");
  if (!InUnit(params.top_p))
    return OutOfRange("top_p", static_cast<double>(params.top_p), "0 to 1");
  if (!InUnit(params.min_p))
    return OutOfRange("min_p", static_cast<double>(params.min_p), "0 to 1");
  if (!std::isfinite(params.repeat_penalty) || params.repeat_penalty <= 0)
    return OutOfRange("repeat_penalty", static_cast<double>(params.repeat_penalty),
                      "a finite number above 0");
  if (params.repeat_last_n < 0)
    return OutOfRange("repeat_last_n", static_cast<double>(params.repeat_last_n), "at least 0");
  return {};
}

Sampler::Sampler(const SamplingParams& params, std::int64_t vocab_size)
    : params_(params), state_(params.seed), candidates_(static_cast<std::size_t>(vocab_size)) {}

Result<Sampler> Sampler::Create(const SamplingParams& params, std::int64_t vocab_size) {
  if (Status status = Validate(params); !status.ok()) return status;
  if (vocab_size < 1 || vocab_size > std::numeric_limits<TokenId>::max())
    return Status(StatusCode::kInvalidArgument,
                  "Sampler: vocab_size = " + std::to_string(vocab_size) + "; expected at least 1");
  return Sampler(params, vocab_size);
}

/// Returns the upper 53 bits of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a number in [0, 1).
double Sampler::NextUniform() {
  state_ += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/// Copies the logits with the repeat penalty applied once to each recent id.
Status Sampler::LoadCandidates(std::span<const float> logits, std::span<const TokenId> history) {
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity())
      return Status(StatusCode::kInvalidArgument, "Sampler: logit of token " + std::to_string(i) +
                                                      " = " + std::to_string(logits[i]) +
                                                      "; expected a finite number or -inf");
    best = std::max(best, logits[i]);
    candidates_[i] = {logits[i], static_cast<TokenId>(i)};
  }
  if (best == -std::numeric_limits<float>::infinity())
    return Status(StatusCode::kInvalidArgument, "Sampler: all " + std::to_string(logits.size()) +
                                                    " logits = -inf; expected a finite one");
  if (params_.repeat_penalty == 1) return {};
  const std::size_t n = std::min(history.size(), static_cast<std::size_t>(params_.repeat_last_n));
  for (TokenId id : history.last(n)) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    // The unchanged logit: an id that occurs twice is penalised once.
    const float logit = logits[id];
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    constexpr float kMost = std::numeric_limits<float>::max();
    candidates_[id].logit = std::clamp(
        logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty, -kMost, kMost);
  }
  return {};
}

Result<TokenId> Sampler::Sample(std::span<const float> logits, std::span<const TokenId> history) {
  if (logits.size() != candidates_.size())
    return Status(StatusCode::kInvalidArgument,
                  "Sampler: logits has " + std::to_string(logits.size()) +
                      " elements; expected vocab_size = " + std::to_string(candidates_.size()));
  if (Status status = LoadCandidates(logits, history); !status.ok()) return status;
  const Candidate top = *std::max_element(candidates_.begin(), candidates_.end(), Worse);
  if (params_.temperature == 0) return top.id;

  const float best = top.logit;
  const std::size_t kept = KeepBest(best);
  const double floor = static_cast<double>(best) + std::log(static_cast<double>(params_.min_p));
  const auto weight = [&](const Candidate& c) {
    const double logit = static_cast<double>(c.logit);
    if (logit < floor) return 0.0;
    return std::exp((logit - static_cast<double>(best)) / static_cast<double>(params_.temperature));
  };
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weight(candidates_[i]);
  double rest = NextUniform() * total;
  TokenId chosen = -1;
  for (std::size_t i = 0; i < kept && rest >= 0; ++i) {
    const double w = weight(candidates_[i]);
    if (w > 0) chosen = candidates_[i].id;
    rest -= w;
  }
  return chosen;
}

/// Compares equal logits by id, so that the order never depends on the sorting algorithm.
bool Sampler::Worse(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
}

/// Moves the tokens that top_k and top_p keep to the front, best first, and returns their number;
/// where neither needs an order, all tokens stay in the order of ids.
std::size_t Sampler::KeepBest(float best) {
  const auto better = [](const Candidate& a, const Candidate& b) { return Worse(b, a); };
  const std::size_t V = candidates_.size();
  const bool cut = params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < V;
  const std::size_t n = cut ? static_cast<std::size_t>(params_.top_k) : V;
  const auto begin = candidates_.begin();
  if (cut)
    std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(n), candidates_.end(), better);
  if (params_.top_p >= 1) return n;

  const auto probability = [best](const Candidate& c) {
    return std::exp(static_cast<double>(c.logit) - static_cast<double>(best));
  };
  double wanted = 0;
  for (std::size_t i = 0; i < n; ++i) wanted += probability(candidates_[i]);
  wanted *= static_cast<double>(params_.top_p);
  // Few tokens usually hold the wanted share: only these are sorted first, and more when they do
  // not.
  double sum = 0;
  std::size_t sorted = cut ? n : 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i == sorted) {
      sorted = std::min(n, std::max<std::size_t>(64, 4 * sorted));
      std::partial_sort(begin + static_cast<std::ptrdiff_t>(i),
                        begin + static_cast<std::ptrdiff_t>(sorted), candidates_.end(), better);
    }
    sum += probability(candidates_[i]);
    if (sum >= wanted) return i + 1;
  }
  return n;
}

}  // namespace manyhead
