#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace manyhead::testing {

/// The bytes of a safetensors file with this header and so much data behind it.
inline std::string SafetensorsFile(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + data;
}

}  // namespace manyhead::testing
