#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "runtime/model/weights.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Computes |W_h a| for every head of a model from the Gram matrices W_h^T W_h, so that a norm
/// needs Dv^2 / 2 products instead of d Dv. W_h [d, Dv] is the head's columns of the output
/// projection, each row times its weight in the norm after attention, if the model has one.
class OutputGrams {
 public:
  /// Cost     2 d H Dv^2 flops and 4 H Dv^2 bytes for each layer.
  /// Errors   those of a LinearWorkspace. Throws bad_alloc.
  static Result<OutputGrams> Create(const Model::Impl& model, Isa isa, int threads);

  /// Returns |W_h a| of a [Dv] for query head `head`.
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
