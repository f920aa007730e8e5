#include "manyhead/rope.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numbers>
#include <utility>

#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"

namespace manyhead {

namespace {

constexpr std::int64_t kMaxHeadDim = 1024;  // limit of the attention kernels
constexpr std::int64_t kMaxPairs = kMaxHeadDim / 2;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;  // limit of the length of a sequence
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

constexpr const char* kScalingNames[] = {"none", "linear", "ntk", "yarn", "llama3", "factors"};
static_assert(std::size(kScalingNames) == static_cast<std::size_t>(RopeScaling::kFactors) + 1);

Status CheckDims(const char* function, std::int64_t head_dim, std::int64_t rotary_dim) {
  if (head_dim < 1 || head_dim > kMaxHeadDim)
    return InvalidArgument(function, "head_dim = ", head_dim, "; expected 1..", kMaxHeadDim);
  if (rotary_dim > head_dim)
    return InvalidArgument(function, "rotary_dim = ", rotary_dim, " exceeds head_dim = ", head_dim);
  if (rotary_dim < 2 || rotary_dim % 2 != 0)
    return InvalidArgument(function, "rotary_dim = ", rotary_dim,
                           "; expected an even number from 2 to head_dim = ", head_dim);
  return {};
}

/// Numbers that must be finite and above `low`.
struct Bound {
  const char* name;
  double value;
  double low;
};

Status CheckBounds(std::initializer_list<Bound> bounds) {
  for (const Bound& bound : bounds)
    if (!(bound.value > bound.low && bound.value < kNoLimit))
      return InvalidArgument("Rope::Create", bound.name, " = ", bound.value,
                             "; expected a finite number above ", bound.low);
  return {};
}

Status CheckTrainedContext(const RopeConfig& config) {
  if (config.original_context >= 1) return {};
  return InvalidArgument("Rope::Create", "original_context = ", config.original_context,
                         " with scaling = ", RopeScalingName(config.scaling),
                         "; expected at least 1");
}

Status CheckYarn(const RopeConfig& config) {
  if (Status status = CheckTrainedContext(config); !status.ok()) return status;
  if (Status status = CheckBounds({{"factor", config.factor, 0},
                                   {"attention_factor", config.attention_factor, 0},
                                   {"beta_fast", config.beta_fast, 0},
                                   {"beta_slow", config.beta_slow, 0}});
      !status.ok())
    return status;
  if (config.beta_fast >= config.beta_slow) return {};
  return InvalidArgument("Rope::Create", "beta_fast = ", config.beta_fast,
                         " is below beta_slow = ", config.beta_slow);
}

Status CheckLlama3(const RopeConfig& config) {
  if (Status status = CheckTrainedContext(config); !status.ok()) return status;
  if (Status status = CheckBounds({{"factor", config.factor, 0},
                                   {"low_freq_factor", config.low_freq_factor, 0},
                                   {"high_freq_factor", config.high_freq_factor, 0}});
      !status.ok())
    return status;
  if (config.high_freq_factor > config.low_freq_factor) return {};
  return InvalidArgument("Rope::Create", "high_freq_factor = ", config.high_freq_factor,
                         " is not above low_freq_factor = ", config.low_freq_factor);
}

Status CheckFactors(const RopeConfig& config) {
  const auto pairs = static_cast<std::size_t>(config.rotary_dim / 2);
  if (config.factors.size() != pairs)
    return InvalidArgument("Rope::Create", "factors has ", config.factors.size(),
                           " elements for rotary_dim / 2 = ", pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    if (!(config.factors[i] > 0) || !std::isfinite(config.factors[i]))
      return InvalidArgument("Rope::Create", "factors[", i, "] = ", config.factors[i],
                             "; expected a finite number above 0");
  return {};
}

Status CheckConfig(const RopeConfig& config, std::int64_t head_dim) {
  if (Status status = CheckDims("Rope::Create", head_dim, config.rotary_dim); !status.ok())
    return status;
  if (Status status = CheckBounds({{"base", config.base, 1}}); !status.ok()) return status;
  switch (config.scaling) {
    case RopeScaling::kNone:
      return {};
    case RopeScaling::kLinear:
    case RopeScaling::kNtk:
      return CheckBounds({{"factor", config.factor, 0}});
    case RopeScaling::kYarn:
      return CheckYarn(config);
    case RopeScaling::kLlama3:
      return CheckLlama3(config);
    case RopeScaling::kFactors:
      return CheckFactors(config);
  }
  return InvalidArgument("Rope::Create", "scaling = ", static_cast<int>(config.scaling),
                         "; expected a RopeScaling");
}

/// Returns the (fractional) pair that makes `turns` full turns over the trained context.
double PairWithTurns(const RopeConfig& config, double turns) {
  const double context = static_cast<double>(config.original_context);
  return static_cast<double>(config.rotary_dim) *
         std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(config.base));
}

/// Keeps the frequency of pairs that turn often, divides that of pairs that turn less than once,
/// and interpolates linearly over the pairs between.
/// Source   arXiv:2309.00071, section 3.2.
void StretchByYarn(const RopeConfig& config, std::vector<double>& frequencies) {
  const double last = static_cast<double>(config.rotary_dim - 1);
  const double low = std::max(0.0, std::floor(PairWithTurns(config, config.beta_fast)));
  const double high = std::min(last, std::ceil(PairWithTurns(config, config.beta_slow)));
  const double width = std::max(0.001, high - low);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    frequencies[i] *= stretched / config.factor + (1 - stretched);
  }
}

/// Does the same as YaRN, except that it interpolates linearly over the number of turns.
void StretchByLlama3(const RopeConfig& config, std::vector<double>& frequencies) {
  const double context = static_cast<double>(config.original_context);
  const double low = config.low_freq_factor, width = config.high_freq_factor - low;
  for (double& frequency : frequencies) {
    const double turns = context * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / width, 0.0, 1.0);
    frequency *= (1 - kept) / config.factor + kept;
  }
}

/// Returns the base that leaves the fastest pair unchanged and divides the slowest's frequency by
/// `factor`.
double NtkBase(const RopeConfig& config) {
  const double d = static_cast<double>(config.rotary_dim);
  return d > 2 ? config.base * std::pow(config.factor, d / (d - 2)) : config.base;
}

std::vector<double> Frequencies(const RopeConfig& config) {
  const double base = config.scaling == RopeScaling::kNtk ? NtkBase(config) : config.base;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.rotary_dim; i += 2)
    frequencies.push_back(
        std::pow(base, -static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  switch (config.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kNtk:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= config.factor;
      break;
    case RopeScaling::kYarn:
      StretchByYarn(config, frequencies);
      break;
    case RopeScaling::kLlama3:
      StretchByLlama3(config, frequencies);
      break;
    case RopeScaling::kFactors:
      for (std::size_t i = 0; i < frequencies.size(); ++i)
        frequencies[i] /= static_cast<double>(config.factors[i]);
      break;
  }
  return frequencies;
}

void RotateToken(Isa isa, bool interleaved, std::int64_t pairs, const float* cosine,
                 const float* sine, std::int64_t heads, std::int64_t head_stride,
                 float* x) noexcept {
  const kernels::VectorKernels& kernels = *KernelsFor(isa).vector;
  const auto rotate = interleaved ? kernels.rope_interleaved : kernels.rope_half_split;
  for (std::int64_t h = 0; h < heads; ++h) rotate(x + h * head_stride, cosine, sine, pairs);
}

/// Returns the heads with the defaults of the strides filled in.
RopeHeads Resolve(RopeHeads x, std::int64_t head_dim) noexcept {
  if (x.head_stride == 0) x.head_stride = head_dim;
  if (x.token_stride == 0) x.token_stride = x.heads * x.head_stride;
  return x;
}

Status CheckHeads(const char* function, const RopeHeads& x) {
  if (Status status = CheckRange(function, "tokens", x.tokens, 0, kMaxLength); !status.ok())
    return status;
  if (Status status = CheckRange(function, "heads", x.heads, 0, kMaxLength); !status.ok())
    return status;
  if (x.data == nullptr && x.tokens > 0 && x.heads > 0)
    return InvalidArgument(function, "x is null with tokens = ", x.tokens,
                           " and heads = ", x.heads);
  return {};
}

template <class T>
Status CheckCount(const char* function, const char* name, std::span<const T> values,
                  std::int64_t expected) {
  if (static_cast<std::int64_t>(values.size()) == expected) return {};
  return InvalidArgument(function, name, " has ", values.size(), " elements; expected ", expected);
}

}  // namespace

const char* RopeScalingName(RopeScaling scaling) noexcept {
  const auto index = static_cast<std::size_t>(scaling);
  return index < std::size(kScalingNames) ? kScalingNames[index] : "unknown";
}

std::optional<RopeScaling> ParseRopeScaling(std::string_view name) noexcept {
  const auto* found = std::find(std::begin(kScalingNames), std::end(kScalingNames), name);
  if (found == std::end(kScalingNames)) return std::nullopt;
  return static_cast<RopeScaling>(found - kScalingNames);
}

Result<Rope> Rope::Create(const RopeConfig& config, std::int64_t head_dim, std::optional<Isa> isa) {
  RopeConfig resolved = config;
  if (resolved.rotary_dim == 0) resolved.rotary_dim = head_dim;
  if (Status status = CheckConfig(resolved, head_dim); !status.ok()) return status;
  const Result<Isa> chosen = ResolveIsa("Rope::Create", isa);
  if (!chosen.ok()) return chosen.status();
  return Rope(std::move(resolved), head_dim, *chosen);
}

Rope::Rope(RopeConfig config, std::int64_t head_dim, Isa isa)
    : config_(std::move(config)),
      head_dim_(head_dim),
      isa_(isa),
      frequencies_(Frequencies(config_)) {
  if (config_.scaling == RopeScaling::kYarn)
    amplitude_ = config_.attention_factor * (0.1 * std::log(std::max(1.0, config_.factor)) + 1);
  else if (config_.scaling == RopeScaling::kFactors)
    amplitude_ = config_.attention_factor;
}

void Rope::Angles(std::int64_t position, float* cosine, float* sine) const noexcept {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cosine[i] = static_cast<float>(std::cos(angle) * amplitude_);
    sine[i] = static_cast<float>(std::sin(angle) * amplitude_);
  }
}

void Rope::Rotate(const float* cosine, const float* sine, std::int64_t heads,
                  std::int64_t head_stride, float* x) const noexcept {
  RotateToken(isa_, config_.interleaved, config_.rotary_dim / 2, cosine, sine, heads, head_stride,
              x);
}

template <class PositionOf>
void Rope::RotateTokens(const RopeHeads& x, PositionOf&& position_of) const noexcept {
  float cosine[kMaxPairs], sine[kMaxPairs];
  const RopeHeads heads = Resolve(x, head_dim_);
  for (std::int64_t t = 0; t < heads.tokens; ++t) {
    Angles(position_of(t), cosine, sine);
    Rotate(cosine, sine, heads.heads, heads.head_stride, heads.data + t * heads.token_stride);
  }
}

Status Rope::Apply(const RopeHeads& x, std::span<const std::int64_t> positions) const noexcept {
  constexpr const char* kName = "Rope::Apply";
  if (Status status = CheckHeads(kName, x); !status.ok()) return status;
  if (Status status = CheckCount(kName, "positions", positions, x.tokens); !status.ok())
    return status;
  for (std::size_t t = 0; t < positions.size(); ++t)
    if (positions[t] < 0 || positions[t] > kMaxLength)
      return InvalidArgument(kName, "positions[", t, "] = ", positions[t], "; expected 0..",
                             kMaxLength);
  RotateTokens(x, [&](std::int64_t t) { return positions[static_cast<std::size_t>(t)]; });
  return {};
}

Status Rope::Apply(const RopeHeads& x, std::int64_t first_position) const noexcept {
  constexpr const char* kName = "Rope::Apply";
  if (Status status = CheckHeads(kName, x); !status.ok()) return status;
  if (Status status = CheckRange(kName, "first_position", first_position, 0, kMaxLength);
      !status.ok())
    return status;
  RotateTokens(x, [&](std::int64_t t) { return first_position + t; });
  return {};
}

Status RotateHeads(const RopeHeads& x, std::int64_t head_dim, std::int64_t rotary_dim,
                   bool interleaved, std::span<const float> cosine, std::span<const float> sine,
                   std::optional<Isa> isa) noexcept {
  constexpr const char* kName = "RotateHeads";
  if (Status status = CheckDims(kName, head_dim, rotary_dim); !status.ok()) return status;
  if (Status status = CheckHeads(kName, x); !status.ok()) return status;
  const std::int64_t pairs = rotary_dim / 2;
  if (Status status = CheckCount(kName, "cosine", cosine, x.tokens * pairs); !status.ok())
    return status;
  if (Status status = CheckCount(kName, "sine", sine, x.tokens * pairs); !status.ok())
    return status;
  const Result<Isa> chosen = ResolveIsa(kName, isa);
  if (!chosen.ok()) return chosen.status();
  const RopeHeads heads = Resolve(x, head_dim);
  for (std::int64_t t = 0; t < heads.tokens; ++t)
    RotateToken(*chosen, interleaved, pairs, cosine.data() + t * pairs, sine.data() + t * pairs,
                heads.heads, heads.head_stride, heads.data + t * heads.token_stride);
  return {};
}

}  // namespace manyhead
