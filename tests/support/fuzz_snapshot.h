#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/support/fuzz.h"
#include "tests/support/memory_file.h"
#include "tests/support/snapshot_file.h"

namespace manyhead::testing {

/// Calls restore(path) for a file of these bytes, and once more with their checksum made right.
template <class Restore>
void FuzzSnapshot(const std::uint8_t* data, std::size_t size, Restore&& restore) {
  static const MemoryFile memory;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (int i = 0; i < 2; ++i) {
    FuzzCheck(memory.Set(bytes));
    restore(memory.path());
    Resign(bytes);
  }
}

}  // namespace manyhead::testing
