#pragma once

#include <span>
#include <string_view>

namespace manyhead {

/// The behaviour that a value of tokenizer.ggml.pre stands for.
///
/// The expressions are applied one after another: each splits every piece so far into its matches
/// and the parts between them. The syntax is PCRE2's, except that \s is the Unicode property
/// White_Space.
struct PreTokenizerSpec {
  std::span<const std::string_view> expressions;
  /// A piece that is a token is kept whole, even if no merges lead to it.
  bool ignore_merges = false;
  /// Value of tokenizer.ggml.add_bos_token where the key is absent.
  bool add_bos = false;
  /// Words start as characters with spaces escaped to U+2581, not as bytes.
  bool space_escaped = false;
  /// Text is converted to Unicode's form NFC first, as the family's tokenizer.json says.
  bool nfc = false;
};

/// Returns null if `name` is not known.
const PreTokenizerSpec* FindPreTokenizer(std::string_view name) noexcept;

/// Returns all names, for messages and tests.
std::span<const std::string_view> PreTokenizerNames() noexcept;

}  // namespace manyhead
