#pragma once

#include <string>
#include <string_view>

#include "manyhead/status.h"
#include "runtime/text/json_part.h"

namespace manyhead {

/// The text that tokens decode to, token by token, as the "decoder" of tokenizer.json says.
struct PieceRule {
  enum class Kind : std::uint8_t {
    kSpaced,     ///< tokens are words with a space before each
    kByteLevel,  ///< characters that spell bytes
    kReplaced,   ///< one character stands for a space
    kWordPiece,  ///< words with a space before each, but for those that continue one
  };
  Kind kind = Kind::kSpaced;
  std::string mark;          ///< mark of a space, or of what continues a word
  bool byte_tokens = false;  ///< "<0x41>" is the byte 0x41
  bool drops_space = true;   ///< a text loses the space that it begins with
  bool cleans_up = false;    ///< no space before punctuation
};

/// Errors   kIoError for a value that is wrong, kUnsupported naming a decoder or one of its values.
Result<PieceRule> ReadPieceRule(const JsonPart& json);

/// Returns the text that `token` decodes to.
std::string PieceOf(const PieceRule& rule, std::string_view token);

}  // namespace manyhead
