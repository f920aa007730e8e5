#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/architecture/tensor_table.h"

namespace manyhead {

/// How a quantization_config says that matrices are stored: `bits` for each element, and for each
/// group of elements what scales and zero points take.
struct Quantization {
  std::string method;            ///< "fp8", "mxfp4", "gptq", ...
  std::int64_t bits = 8;         ///< of an element
  std::int64_t group = 1 << 14;  ///< elements that share a scale
  std::int64_t group_bits = 0;   ///< of a group's scale and zero point
  bool experts_only = false;     ///< the matrices outside of experts keep their type
};

/// The bytes of a tensor of `row` with that many elements; nothing where it keeps its type.
/// Embedding, output matrix, routers and vectors always do.
std::optional<std::int64_t> QuantizedBytes(const Quantization& quantization, const TensorRow& row,
                                           std::int64_t elements);

}  // namespace manyhead
