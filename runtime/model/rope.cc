#include "runtime/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace manyhead {
namespace {

/// The (fractional) pair that makes `turns` full turns over the trained context.
double PairWithTurns(const RopeConfig& config, double turns) {
  const double context = static_cast<double>(config.original_context);
  return static_cast<double>(config.rotary_dim) *
         std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(config.base));
}

/// Pairs that turn often keep their frequency, those that turn less than once are stretched, a
/// linear ramp lies between.
void StretchByYarn(const RopeConfig& config, std::vector<double>& inverse_wavelengths) {
  const double last = static_cast<double>(config.rotary_dim - 1);
  const double low = std::max(0.0, std::floor(PairWithTurns(config, config.beta_fast)));
  const double high = std::min(last, std::ceil(PairWithTurns(config, config.beta_slow)));
  const double width = std::max(0.001, high - low);
  for (std::size_t i = 0; i < inverse_wavelengths.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    inverse_wavelengths[i] *= stretched / config.factor + (1 - stretched);
  }
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config) {
  RopeFrequencies result;
  const std::int64_t half = config.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i)
    result.inverse_wavelengths.push_back(std::pow(
        config.base, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  switch (config.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& w : result.inverse_wavelengths) w /= config.factor;
      break;
    case RopeScaling::kYarn:
      StretchByYarn(config, result.inverse_wavelengths);
      result.amplitude = config.attention_factor * (0.1 * std::log(config.factor) + 1);
      break;
    case RopeScaling::kFactors:
      for (std::int64_t i = 0; i < half; ++i)
        result.inverse_wavelengths[i] /= static_cast<double>(config.factors[i]);
      break;
  }
  return result;
}

void RopeAngles(const RopeFrequencies& frequencies, std::int64_t position, float* cosine,
                float* sine) noexcept {
  const std::size_t half = frequencies.inverse_wavelengths.size();
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies.inverse_wavelengths[i];
    cosine[i] = static_cast<float>(std::cos(angle) * frequencies.amplitude);
    sine[i] = static_cast<float>(std::sin(angle) * frequencies.amplitude);
  }
}

}  // namespace manyhead
