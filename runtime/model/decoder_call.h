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

  RowRole role = RowRole::kPrefill;

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(ids.size()); }
  LinearRows linear_rows() const noexcept {
    static constexpr std::int64_t kFirst[] = {0};
    LinearRows made;
    (role == RowRole::kDecode ? made.decode : made.prefill) = rows();
    if (position == 0) made.beginnings = kFirst;
    return made;
  }
};

inline const float* OrNull(const std::vector<float>& values) noexcept {
  return values.empty() ? nullptr : values.data();
}

}  // namespace manyhead
