#pragma once

#include <span>
#include <string_view>

/// Lists the keys of a Hugging Face config.json: every key that the config classes of these
/// families read is used, harmless or refused.

namespace manyhead::hf_keys {

/// Returns the keys that sizes and what a model computes are read from.
std::span<const std::string_view> Used() noexcept;

struct Harmless {
  std::string_view key;
  std::string_view why;  ///< reason why it changes no result
};
std::span<const Harmless> HarmlessKeys() noexcept;

/// Returns keys that change a model's tensors or its attention in a way that is not planned. null,
/// false, 0 and empty values state that the feature is off.
std::span<const std::string_view> RefusedKeys() noexcept;

}  // namespace manyhead::hf_keys
