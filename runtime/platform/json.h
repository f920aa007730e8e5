#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "manyhead/status.h"

namespace manyhead {

/// The largest depth of nested arrays and objects; functions of the library that walk over a value
/// are recursive.
inline constexpr int kMaxJsonDepth = 64;

enum class JsonKeys : std::uint8_t {
  /// A key that an object has twice is an error, since another reader may take the other value.
  kUnique,
  kLastCounts,  ///< the last value of a key counts, as in the readers of other projects' files
};

/// Owns a value and can destroy it without memory: the destructor of nlohmann's type allocates for
/// arrays and objects with elements, and ends the process where it cannot.
class JsonTree {
 public:
  JsonTree() = default;
  explicit JsonTree(nlohmann::ordered_json&& root) noexcept : root_(std::move(root)) {}
  JsonTree(JsonTree&&) noexcept = default;
  JsonTree& operator=(JsonTree&&) = delete;
  ~JsonTree() { Empty(root_); }

  const nlohmann::ordered_json& root() const noexcept { return root_; }
  nlohmann::ordered_json& root() noexcept { return root_; }

  /// Leaves arrays and objects without elements; nothing is allocated.
  static void Empty(nlohmann::ordered_json& json) noexcept;

 private:
  nlohmann::ordered_json root_;
};

/// Parses a text from outside the library.
///
/// Errors   kInvalidArgument: "the text is no valid JSON", or another reason. Throws bad_alloc.
Result<JsonTree> ParseJson(std::string_view text, JsonKeys keys);

/// Returns a value as a part of a message: one line of at most about 80 bytes.
std::string ShowJson(const nlohmann::ordered_json& json);

}  // namespace manyhead
