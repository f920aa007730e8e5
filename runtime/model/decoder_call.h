#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/decoder.h"

/// What the files of the decoder share.

namespace manyhead {

struct Decoder::Call {
  KvCache& cache;
  SequenceId sequence;
  std::span<const TokenId> ids;
  std::int64_t position;  // of ids[0] in the sequence
  LayerPart part;

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(ids.size()); }
  /// A sequence's first token is where models park their largest activations (arXiv:2402.17762),
  /// beside which int8 rounds the others away, and every later token attends to it.
  LinearMath first_math() const noexcept {
    return position == 0 ? LinearMath::kBf16 : LinearMath::kInt8;
  }
};

inline const float* OrNull(const std::vector<float>& values) noexcept {
  return values.empty() ? nullptr : values.data();
}

}  // namespace manyhead
