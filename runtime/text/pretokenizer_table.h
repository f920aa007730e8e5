#pragma once

#include <span>
#include <string_view>

namespace manyhead {

/// What a value of tokenizer.ggml.pre stands for.
///
/// The expressions are applied one after the other: each splits every piece so far into its matches
/// and what lies between them. Beside PCRE2's syntax, \s is the Unicode property White_Space.
struct PreTokenizerSpec {
  std::span<const std::string_view> expressions;
  /// A piece that is a token is taken as it is, even if no merges lead to it.
  bool ignore_merges = false;
  /// What tokenizer.ggml.add_bos_token is if absent.
  bool add_bos = false;
  /// Words start as characters with spaces escaped to U+2581, not as bytes.
  bool space_escaped = false;
  /// Text is brought to Unicode's form NFC first, as the family's tokenizer.json says.
  bool nfc = false;
};

/// Null if `name` is not known.
const PreTokenizerSpec* FindPreTokenizer(std::string_view name) noexcept;

/// All names, for messages and tests.
std::span<const std::string_view> PreTokenizerNames() noexcept;

}  // namespace manyhead
