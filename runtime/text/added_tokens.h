#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/text/json_part.h"
#include "runtime/text/special_tokens.h"
#include "runtime/text/text_normalizer.h"
#include "runtime/text/word_model.h"

namespace manyhead {

/// A token that is found whole in a text, before the text is cut into words.
struct AddedToken {
  TokenId id = -1;
  std::string text;
  bool single_word = false;  ///< only where no letter or digit stands beside it
  bool strip_left = false;   ///< white space before it belongs to it
  bool strip_right = false;
  bool normalized = false;  ///< found in the normalised text, as its own text is then
  bool special = false;     ///< a control token
};

/// Reads the list "added_tokens" of tokenizer.json.
/// Errors   kIoError for a value that is wrong.
Result<std::vector<AddedToken>> ReadAddedTokens(const JsonPart& json);

/// Finds added tokens of one kind in texts: leftmost first, and the longest at each place.
///
/// Threads  immutable.
class AddedTokenFinder {
 public:
  /// Takes those whose `normalized` is as given.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized);

  /// Replaces the texts of added tokens by the texts that they have after normalisation.
  Status Normalize(const TextNormalizer& normalizer);

  /// Cuts `text`, which is valid UTF-8, into tokens and what lies between them. Special tokens are
  /// plain text unless `parse_special`.
  std::vector<Fragment> Split(std::string_view text, bool parse_special) const;

 private:
  /// Returns the token that begins at `at`, the longest; null without one.
  const AddedToken* Match(std::string_view text, std::size_t at) const;
  void Index();

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string_view, std::size_t> by_text_;
  std::array<std::vector<std::size_t>, 256> lengths_;  // lengths by first byte, longest first
};

}  // namespace manyhead
