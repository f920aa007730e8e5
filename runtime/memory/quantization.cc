#include "runtime/memory/quantization.h"

namespace manyhead {

bool IsExpert(TensorRole role) noexcept {
  return role == TensorRole::kGateExperts || role == TensorRole::kUpExperts ||
         role == TensorRole::kDownExperts;
}

std::optional<std::int64_t> QuantizedBytes(const Quantization& quantization, const TensorRow& row,
                                           std::int64_t elements) {
  if (row.part != TensorPart::kMatrix || !row.per_layer() || row.role == TensorRole::kRouter)
    return std::nullopt;
  if (quantization.experts_only && !IsExpert(row.role)) return std::nullopt;
  constexpr std::int64_t kByte = 8;
  const std::int64_t groups = (elements + quantization.group - 1) / quantization.group;
  return elements / kByte * quantization.bits + groups * quantization.group_bits / kByte;
}

}  // namespace manyhead
