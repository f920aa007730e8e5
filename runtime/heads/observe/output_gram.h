#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "runtime/model/weights.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// |W_h a| for every head of a model, W_h [d, Dv] being its columns of the output projection, each
/// row times its weight in the norm after attention, if the family has one: from the Gram matrices
/// W_h^T W_h, so that a norm takes Dv^2 / 2 products instead of d Dv.
class OutputGrams {
 public:
  /// Cost     2 d H Dv^2 flops and 4 H Dv^2 bytes for each layer.
  /// Errors   those of a LinearWorkspace. Throws bad_alloc.
  static Result<OutputGrams> Create(const Model::Impl& model, Isa isa, int threads);

  /// Of a [Dv] of query head `head`.
  double Norm(std::int64_t layer, std::int64_t head, const float* a) const noexcept;

 private:
  struct Layer {
    std::int64_t head_dim_v = 0;
    std::int64_t row = 0;        ///< head_dim_v rounded up
    AlignedBuffer<float> grams;  ///< [H][Dv][row], see Norm
  };
  std::vector<Layer> layers_;
};

}  // namespace manyhead
