#pragma once

#include <cstdint>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// Says whether a token is evaluated as part of a prompt or as a generated token. Its role, its
/// position, the weights' types, MathMode and the instruction set decide the arithmetic of its
/// products; the number of tokens that are evaluated together never does.
enum class RowRole : std::uint8_t {
  kPrefill,  ///< a token of a prompt: takes the products that are fastest for many tokens
  /// A generated token, or a draft to be verified: takes the products that are fastest for one.
  kDecode,
};

/// Says how activations are normalised before a block reads them.
enum class NormKind : std::uint8_t {
  kNone,   ///< activations are not normalised
  kRms,    ///< x / sqrt(mean(x^2) + eps) * scale
  kLayer,  ///< (x - mean(x)) / sqrt(variance(x) + eps) * scale + shift
};

/// The products of a feed-forward block.
enum class FeedForwardKind : std::uint8_t {
  kGated,  ///< down(activation(gate(x)) * up(x))
  kPlain,  ///< down(activation(up(x)))
};

/// The function between the feed-forward products.
enum class Activation : std::uint8_t {
  kSilu,      ///< x * sigmoid(x)
  kGeluTanh,  ///< x * Phi(x), with Phi approximated by tanh ("gelu_new", "gelu_pytorch_tanh")
  kGelu,      ///< x * Phi(x), with Phi computed from erf
};

}  // namespace manyhead
