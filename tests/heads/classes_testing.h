#pragma once

#include <cstdint>

#include "tests/model/load_tiny.h"

namespace manyhead::testing {

/// Numbers in [0, 1) that are the same everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : state_(seed * 2654435761U + 1) {}
  double Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<double>(state_ >> 8) * 0x1p-24;
  }

 private:
  std::uint32_t state_;
};

}  // namespace manyhead::testing
