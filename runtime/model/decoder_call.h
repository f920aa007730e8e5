#pragma once

#include "runtime/model/decoder.h"

/// Declares what the files of the decoder share.

namespace manyhead {

struct Decoder::Call {
  KvCache& cache;
  const StepBatch& batch;
  LayerPart part;
};

inline const float* OrNull(const std::vector<float>& values, bool given) noexcept {
  return given ? values.data() : nullptr;
}

}  // namespace manyhead
