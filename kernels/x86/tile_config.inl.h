#pragma once

#include <cstdint>

namespace manyhead::kernels::amx {
namespace {  // NOLINT(google-build-namespaces): one private copy per file

/// The shapes of the eight tiles, as the CPU reads them from memory.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};

/// Describes the tiles: 0 to 3 hold 16 x 16 sums of 32 bits. Tiles 4 and 5 have 16 rows of the left
/// matrix, with `depth` bytes each; 6 and 7 have as many of the right one, four to each of 16
/// columns.
///
/// A config must be in static memory: GCC 12 assumes that the intrinsic which loads it reads only 8
/// bytes, and drops writes to the rest.
constexpr TileConfig ConfigFor(int depth) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.bytes_per_row[t] = static_cast<std::uint16_t>(t == 4 || t == 5 ? depth : 64);
    config.rows[t] = static_cast<std::uint8_t>(t >= 6 ? depth / 4 : 16);
  }
  return config;
}

}  // namespace
}  // namespace manyhead::kernels::amx
