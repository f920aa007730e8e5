#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/text/json_part.h"

namespace manyhead {

/// Finds texts without making strings of views.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>()(text);
  }
};
using TokenIds = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

/// Encodes the words of a text, one by one.
///
/// Threads  immutable.
class WordModel {
 public:
  virtual ~WordModel() = default;

  /// Appends the ids of `word`, which is valid UTF-8 and not empty.
  /// Errors   kInvalidArgument where the vocabulary cannot express it.
  virtual Status Append(std::string_view word, std::vector<TokenId>* ids) const = 0;

  const TokenIds& ids() const noexcept { return ids_; }
  /// Returns the token that stands for what the vocabulary lacks, or kNoToken.
  TokenId unknown() const noexcept { return unknown_; }
  /// Returns the bytes of its tables, as far as the standard library shows them.
  virtual std::int64_t memory_bytes() const noexcept;

 protected:
  TokenId Find(std::string_view text) const noexcept;
  /// Appends the byte tokens "<0x41>" of every byte of `text`; returns false, with nothing
  /// appended, if one lacks.
  bool AppendBytes(std::string_view text, std::vector<TokenId>* ids) const;

  TokenIds ids_;
  TokenId unknown_ = -1;
};

/// Ids of a file lie below this.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 22;

/// Returns e.g. "<0x41>".
std::string ByteTokenText(std::uint8_t byte);

/// Makes the model that an object of tokenizer.json describes: BPE, WordPiece or Unigram.
/// Errors   kIoError for a value that is wrong, kUnsupported naming another type or an option.
Result<std::unique_ptr<const WordModel>> MakeWordModel(const JsonPart& json);
Result<std::unique_ptr<const WordModel>> MakePairModel(const JsonPart& json);
Result<std::unique_ptr<const WordModel>> MakeUnigramModel(const JsonPart& json);

/// Reads an object of texts and ids.
Status ReadTokenIds(const JsonPart& json, TokenIds* ids);

}  // namespace manyhead
