#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "manyhead/status.h"

namespace manyhead {

/// Arrays and objects inside each other; a library's own walks over a value are recursive.
inline constexpr int kMaxJsonDepth = 64;

enum class JsonKeys : std::uint8_t {
  kUnique,  ///< a key that an object has twice is an error: who else reads it may take the other
  kLastCounts,  ///< as the readers of other projects' files do
};

/// The value of a text from outside.
///
/// Errors   kInvalidArgument: "the text is no valid JSON", or what else is wrong with it.
Result<nlohmann::ordered_json> ParseJson(std::string_view text, JsonKeys keys);

}  // namespace manyhead
