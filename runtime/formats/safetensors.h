#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// The contents of a safetensors file and their places, with every byte of its header checked once.
struct SafetensorsIndex {
  std::vector<std::string> names;        ///< names of all tensors; views below point here
  std::vector<StoredTensor> tensors;     ///< in the order of their data
  std::vector<UnreadableTensor> others;  ///< tensors of types that this library does not read
};

/// Checks `bytes`, the whole file, and indexes it; the tensors' data point into `bytes`. `name`
/// stands for the file in messages.
///
/// Refused although a lenient reader could go on: two tensors of one name, tensors that share
/// bytes, bytes that belong to no tensor, dimensions of 0, and keys that the format does not have.
///
/// Errors   kIoError naming the file, and the tensor with both values.
Result<SafetensorsIndex> ParseSafetensors(std::span<const std::byte> bytes,
                                          const std::string& name);

}  // namespace manyhead
