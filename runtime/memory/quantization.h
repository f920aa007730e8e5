#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/architecture/tensor_table.h"

namespace manyhead {

/// Whether tensors of `role` hold a matrix for each expert.
bool IsExpert(TensorRole role) noexcept;

/// The storage of matrices that a quantization_config states: `bits` for each element, and the bits
/// of scales and zero points for each group of elements.
struct Quantization {
  std::string method;            ///< "fp8", "mxfp4", "gptq", ...
  std::int64_t bits = 8;         ///< bits of an element
  std::int64_t group = 1 << 14;  ///< elements that share a scale
  std::int64_t group_bits = 0;   ///< bits of a group's scale and zero point
  bool experts_only = false;     ///< matrices outside of experts keep their type
};

/// Returns the bytes of a tensor of `row` with that many elements; nothing where it keeps its type.
/// Embedding, output matrix, routers and vectors always keep it.
std::optional<std::int64_t> QuantizedBytes(const Quantization& quantization, const TensorRow& row,
                                           std::int64_t elements);

}  // namespace manyhead
