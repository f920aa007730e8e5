#pragma once

#include <memory>
#include <string>
#include <vector>

#include "manyhead/status.h"
#include "runtime/text/json_part.h"

namespace manyhead {

/// A stretch of a text on its way to words, in valid UTF-8.
struct TextPart {
  std::string text;
  bool begins = false;  ///< the whole text begins with it
};

/// One way to cut a text into the words that a model encodes one by one.
///
/// Threads  immutable.
class WordSplitter {
 public:
  virtual ~WordSplitter() = default;
  /// Replaces each of `parts` by what it is cut into.
  virtual Status Apply(std::vector<TextPart>* parts) const = 0;
};

/// Makes the pre-tokenizer that an object of tokenizer.json describes: Sequence, ByteLevel, Split,
/// Metaspace, BertPreTokenizer, Digits, Punctuation, Whitespace, WhitespaceSplit or
/// CharDelimiterSplit.
/// Errors   kIoError for a value that is wrong, kUnsupported naming another type.
Result<std::unique_ptr<const WordSplitter>> MakeWordSplitter(const JsonPart& json);

}  // namespace manyhead
