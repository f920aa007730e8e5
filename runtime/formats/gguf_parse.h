#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/formats/gguf.h"
#include "runtime/formats/gguf_value.h"

namespace manyhead {

/// The contents of a GGUF file and their positions; every byte of its header has been checked once.
struct GgufIndex {
  int version = 0;
  std::vector<std::uint64_t> keys_by_name;  ///< start of each key in the file
  std::uint64_t keys_end = 0;               ///< end of the last key's value
  std::uint64_t alignment = 0;              ///< alignment of the tensors' data
  std::vector<StoredTensor> tensors;        ///< in file order
  std::vector<std::uint32_t> tensors_by_name;
};

/// Checks `bytes`, the whole file, and indexes it; views in the result point into `bytes`. `name`
/// stands for the file in messages. The time is proportional to the header (times the logarithm of
/// its counts); the memory is less than the file, or 16 MiB.
Result<GgufIndex> ParseGguf(std::span<const std::byte> bytes, const std::string& name);

/// The key at `offset` of a checked file, with its value.
struct GgufKey {
  std::string_view name;
  GgufValue value;
};
GgufKey ReadKey(std::span<const std::byte> bytes, std::uint64_t offset) noexcept;
std::optional<GgufValue> FindValue(std::span<const std::byte> bytes, const GgufIndex& index,
                                   std::string_view key) noexcept;

}  // namespace manyhead
