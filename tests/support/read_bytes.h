#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace manyhead::testing {

/// Returns the bytes of a file; none where it cannot be read.
inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace manyhead::testing
