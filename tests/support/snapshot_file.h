#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "runtime/platform/checksum.h"

namespace manyhead::testing {

/// Makes a snapshot's number of bytes and checksum right again after its bytes were changed, so
/// that a reader looks at the rest.
inline void Resign(std::string& file) {
  if (file.size() < 40) return;
  const std::uint64_t size = file.size();
  std::memcpy(file.data() + 16, &size, sizeof size);
  const auto bytes = std::as_bytes(std::span(file));
  const std::uint64_t sum = ChecksumOf(bytes.first(bytes.size() - 8));
  std::memcpy(file.data() + file.size() - 8, &sum, sizeof sum);
}

}  // namespace manyhead::testing
