#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

/// The defaults of a model for values that its file does not state.
struct SpecialTokenDefaults {
  bool add_bos = false;
  bool force_bos = false;  ///< encoded text begins with bos whatever the file says
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unknown;
};

/// A part of the text, or a special token found in it.
struct Fragment {
  TokenId id = kNoToken;  ///< kNoToken: text
  std::string_view text;
};

/// The tokens with a role: begin, end, those that end a generation, those found as a whole in a
/// text.
class SpecialTokens {
 public:
  /// Reads the roles from `metadata`, and from the texts that models give such tokens: the texts of
  /// control tokens, or of any tokens where the file declares no types; these then become control
  /// tokens.
  /// Errors   kIoError naming the key for an id outside the vocabulary.
  static Result<SpecialTokens> Load(const Metadata& metadata, const SpecialTokenDefaults& defaults,
                                    Vocabulary* vocabulary);

  /// Splits `text` at the special tokens it contains: longest first, then leftmost. User-defined
  /// tokens always count, control tokens only with `parse_special`.
  std::vector<Fragment> Split(const Vocabulary& vocabulary, std::string_view text,
                              bool parse_special) const;

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  TokenId unknown = kNoToken;
  bool add_bos = false;
  bool add_eos = false;
  std::vector<TokenId> end_tokens;  ///< sorted, without duplicates

 private:
  struct Matcher;
  struct Entry {
    TokenId id = kNoToken;
    bool strip_right = false;  ///< white space after it belongs to it
  };
  Status ReadIds(const Metadata& metadata, const SpecialTokenDefaults& defaults,
                 Vocabulary* vocabulary);
  Status ReadFlags(const Metadata& metadata, const SpecialTokenDefaults& defaults);
  void AddEndTexts(Vocabulary* vocabulary);
  Status ListEntries(const Metadata& metadata, const Vocabulary& vocabulary);

  std::vector<Entry> entries_;  // longest text first
};

}  // namespace manyhead
