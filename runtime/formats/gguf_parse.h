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

/// What a GGUF file holds and where, with every byte of its header checked once.
struct GgufIndex {
  int version = 0;
  std::vector<std::uint64_t> keys_by_name;  ///< where each key starts in the file
  std::uint64_t keys_end = 0;               ///< where the last key's value ends
  std::uint64_t alignment = 0;              ///< of the tensors' data
  std::vector<StoredTensor> tensors;        ///< in file order
  std::vector<std::uint32_t> tensors_by_name;
};

/// Checks `bytes`, the whole file, and indexes it; views in the result point into `bytes`. `name`
/// stands for the file in messages. Takes time in proportion to the header (times the logarithm of
/// its counts) and less memory than the file, or 16 MiB.
Result<GgufIndex> ParseGguf(std::span<const std::byte> bytes, const std::string& name);

/// The key at `offset` of a checked file, and its value.
struct GgufKey {
  std::string_view name;
  GgufValue value;
};
GgufKey ReadKey(std::span<const std::byte> bytes, std::uint64_t offset) noexcept;
std::optional<GgufValue> FindValue(std::span<const std::byte> bytes, const GgufIndex& index,
                                   std::string_view key) noexcept;

}  // namespace manyhead
