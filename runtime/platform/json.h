#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "manyhead/status.h"

namespace manyhead {

/// Arrays and objects inside each other; a library's own walks over a value are recursive.
inline constexpr int kMaxJsonDepth = 64;

enum class JsonKeys : std::uint8_t {
  kUnique,  ///< a key that an object has twice is an error: who else reads it may take the other
  kLastCounts,  ///< as the readers of other projects' files do
};

/// A value that may go away when there is no memory: the destructor of the type inside allocates
/// for arrays and objects that hold something, and ends the process where it cannot.
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

/// The value of a text from outside.
///
/// Errors   kInvalidArgument: "the text is no valid JSON", or what else is wrong with it.
///          Throws bad_alloc.
Result<JsonTree> ParseJson(std::string_view text, JsonKeys keys);

/// A value as a part of a message: one line, whatever it holds, of at most some 80 bytes.
std::string ShowJson(const nlohmann::ordered_json& json);

}  // namespace manyhead
