#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/isa.h"
#include "manyhead/status.h"

namespace MANYHEAD_API manyhead {

/// Says how rotary frequencies are scaled beyond the trained context.
enum class RopeScaling : std::uint8_t {
  kNone,     ///< frequencies are not scaled
  kLinear,   ///< positions divided by `factor` (arXiv:2306.15595)
  kNtk,      ///< base * factor^(d / (d - 2)), d = rotary_dim: "NTK-aware" in arXiv:2309.00071, 3.1
  kYarn,     ///< arXiv:2309.00071
  kLlama3,   ///< scaled by wavelength, as Llama 3.1 computes its factors
  kFactors,  ///< every frequency divided by its own factor, as Llama 3.1 files store it
};

/// Returns "none", "linear", "ntk", "yarn", "llama3" or "factors".
const char* RopeScalingName(RopeScaling scaling) noexcept;
/// Parses a name that RopeScalingName returns; returns nothing for any other name.
std::optional<RopeScaling> ParseRopeScaling(std::string_view name) noexcept;

/// Parameters of rotary position embedding, arXiv:2104.09864.
struct RopeConfig {
  std::int64_t rotary_dim = 0;  ///< leading elements of a head that are rotated; even; 0 = all
  bool interleaved = false;     ///< pairs (2i, 2i + 1); otherwise (i, i + rotary_dim / 2)
  double base = 10000;          ///< above 1
  RopeScaling scaling = RopeScaling::kNone;  ///< scaling beyond the trained context
  double factor = 1;                         ///< stretch of the context, above 0; not for kFactors
  /// kYarn, kLlama3: tokens the model was trained on.
  std::int64_t original_context = 0;
  /// kYarn: multiplies the usual 0.1 ln(factor) + 1. kFactors: the amplitude.
  double attention_factor = 1;
  double beta_fast = 32;        ///< kYarn: turns over the trained context that keep a frequency
  double beta_slow = 1;         ///< kYarn: turns below which it is divided by factor
  double low_freq_factor = 1;   ///< kLlama3: as beta_slow
  double high_freq_factor = 4;  ///< kLlama3: as beta_fast
  std::vector<float> factors;   ///< kFactors: rotary_dim / 2 divisors, above 0
  /// kFactors: what a decoder takes in place of `factors` for a context of more than
  /// original_context tokens; empty: nothing else.
  std::vector<float> long_factors;
};

/// The heads of some tokens: element d of head h of token t lies at data[t * token_stride +
/// h * head_stride + d].
struct RopeHeads {
  float* data = nullptr;          ///< points to element (0, 0, 0)
  std::int64_t tokens = 0;        ///< T
  std::int64_t heads = 0;         ///< heads of each token
  std::int64_t token_stride = 0;  ///< elements; 0 = dense, heads * head_stride
  std::int64_t head_stride = 0;   ///< elements; 0 = dense, head_dim
};

/// Rotates pair i of every head at position p by the angle p * frequencies()[i], and multiplies it
/// by amplitude(): (a, b) becomes (a cos - b sin, a sin + b cos). The elements from rotary_dim on
/// are not changed.
///
/// Errors   kInvalidArgument, naming the parameter and both values; nothing is then written.
/// Threads  immutable and reentrant; Apply allocates nothing and runs on the calling thread.
/// Accuracy angles, cosines and sines are computed in double, then rounded to f32: positions of a
///          million are as exact as position 1.
class Rope {
 public:
  /// Creates the rotation of heads with `head_dim` elements, 2..1024; `isa` defaults to
  /// SelectIsa().
  static Result<Rope> Create(const RopeConfig& config, std::int64_t head_dim,
                             std::optional<Isa> isa = std::nullopt);

  /// Rotates heads in place; positions [tokens], each 0..2^31.
  Status Apply(const RopeHeads& x, std::span<const std::int64_t> positions) const noexcept;
  /// Does the same, where token t has position `first_position` + t.
  Status Apply(const RopeHeads& x, std::int64_t first_position) const noexcept;

  /// Computes the rotation at `position`, times amplitude(): cosine, sine [rotary_dim / 2].
  void Angles(std::int64_t position, float* cosine, float* sine) const noexcept;
  /// Rotates `heads` heads of one token, `head_stride` elements apart, by what Angles computed.
  void Rotate(const float* cosine, const float* sine, std::int64_t heads, std::int64_t head_stride,
              float* x) const noexcept;

  /// The parameters, with the defaults filled in.
  const RopeConfig& config() const noexcept { return config_; }
  /// The value that was given to Create.
  std::int64_t head_dim() const noexcept { return head_dim_; }
  /// Angles of the pairs [rotary_dim / 2], in radians per token.
  std::span<const double> frequencies() const noexcept { return frequencies_; }
  /// Factor on rotated elements; another number than 1 only under kYarn and kFactors.
  double amplitude() const noexcept { return amplitude_; }

 private:
  Rope(RopeConfig config, std::int64_t head_dim, Isa isa);
  template <class PositionOf>
  void RotateTokens(const RopeHeads& x, PositionOf&& position_of) const noexcept;

  RopeConfig config_;
  std::int64_t head_dim_;
  Isa isa_;
  std::vector<double> frequencies_;
  double amplitude_ = 1;
};

/// Rotates by cosines and sines that the caller supplies, cosine, sine [tokens, rotary_dim / 2].
/// Heads have `head_dim` elements, 1..1024; rotary_dim is even and at most head_dim.
///
/// Errors   kInvalidArgument, naming the parameter and both values; nothing is then written.
///          kUnsupported for an instruction set this CPU lacks.
Status RotateHeads(const RopeHeads& x, std::int64_t head_dim, std::int64_t rotary_dim,
                   bool interleaved, std::span<const float> cosine, std::span<const float> sine,
                   std::optional<Isa> isa = std::nullopt) noexcept;

}  // namespace manyhead
