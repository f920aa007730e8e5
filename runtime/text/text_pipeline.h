#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/text_normalizer.h"
#include "runtime/text/word_model.h"
#include "runtime/text/word_splitter.h"

namespace manyhead {

/// The way from a text to ids that a tokenizer.json describes: added tokens are found first, what
/// lies between them is normalised, cut into words, and each word encoded by the model.
///
/// Threads  immutable.
struct TextPipeline {
  AddedTokenFinder found_raw, found_normalized;
  std::unique_ptr<const TextNormalizer> normalizer;  ///< null: none
  std::unique_ptr<const WordSplitter> splitter;      ///< null: a stretch of text is one word
  std::unique_ptr<const WordModel> model;
  bool byte_level = false;              ///< bytes are tokens by the characters that spell them
  std::vector<TokenId> prefix, suffix;  ///< around every text

  /// Any bytes are accepted: those that are no valid UTF-8 become the tokens of bytes, or unknown.
  /// Errors   kInvalidArgument when the vocabulary cannot express the text.
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;

 private:
  Status AppendValid(std::string_view text, bool begins, bool parse_special,
                     std::vector<TokenId>* ids) const;
  Status AppendStretch(std::string_view text, bool begins, bool parse_special,
                       std::vector<TokenId>* ids) const;
  Status AppendByte(std::uint8_t byte, std::vector<TokenId>* ids) const;
};

}  // namespace manyhead
