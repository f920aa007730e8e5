#pragma once

#include <cstdint>
#include <sstream>

#include "manyhead/status.h"

namespace manyhead::layer {

/// kInvalidArgument: "function: parts".
template <class... Parts>
Status Invalid(const char* function, const Parts&... parts) {
  std::ostringstream message;
  message << function << ": ";
  (message << ... << parts);
  return {StatusCode::kInvalidArgument, message.str()};
}

inline Status CheckRange(const char* function, const char* name, std::int64_t value,
                         std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(function, name, " = ", value, "; expected ", low, "..", high);
}

}  // namespace manyhead::layer
