#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/text/json_part.h"

namespace manyhead {

/// One way to change a text before it is cut into words.
///
/// Threads  immutable.
class TextNormalizer {
 public:
  virtual ~TextNormalizer() = default;
  /// Changes `text`, which is valid UTF-8 and stays so.
  virtual Status Apply(std::string* text) const = 0;
};

/// Makes the normalizer that an object of tokenizer.json describes: Sequence, NFC, NFD, NFKC, NFKD,
/// Lowercase, Strip, StripAccents, Replace, Prepend or BertNormalizer.
/// Errors   kIoError for a value that is wrong, kUnsupported naming another type.
Result<std::unique_ptr<const TextNormalizer>> MakeTextNormalizer(const JsonPart& json);

}  // namespace manyhead
