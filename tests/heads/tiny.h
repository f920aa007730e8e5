#pragma once

#include <cstdint>
#include <string>

#include "tests/model/load_tiny.h"

namespace manyhead::testing {

inline TinyModel MakeTiny(const std::string& family, std::int64_t window) {
  TinyModel tiny;
  tiny.family = family;
  tiny.window = window;
  tiny.window_pattern = window > 0 ? 2 : 0;
  tiny.num_heads = 6;
  tiny.MakeWeights(3);
  return tiny;
}

}  // namespace manyhead::testing
