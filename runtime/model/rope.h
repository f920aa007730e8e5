#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/model.h"

namespace manyhead {

/// What a RopeConfig comes to: pair i turns by position * inverse_wavelengths[i], and every cosine
/// and sine is multiplied by `amplitude`.
struct RopeFrequencies {
  std::vector<double> inverse_wavelengths;  ///< [rotary_dim / 2], radians per token
  double amplitude = 1;
};

/// Source   rotation arXiv:2104.09864; YaRN's ramp and amplitude arXiv:2309.00071, section 3.
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config);

/// The rotation at `position`: cosine, sine [rotary_dim / 2], computed in double so that positions
/// of a million keep f32's accuracy.
void RopeAngles(const RopeFrequencies& frequencies, std::int64_t position, float* cosine,
                float* sine) noexcept;

}  // namespace manyhead
