#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/support/gguf_writer.h"

namespace manyhead::testing {

/// The numbers of tokenizer.ggml.token_type.
inline constexpr std::int32_t kNormal = 1;
inline constexpr std::int32_t kUnknown = 2;
inline constexpr std::int32_t kControl = 3;
inline constexpr std::int32_t kUserDefined = 4;
inline constexpr std::int32_t kUnused = 5;
inline constexpr std::int32_t kByte = 6;

/// "<0x41>".
std::string ByteTokenText(int byte);

/// A vocabulary that tests fill token by token and write as a GGUF file.
struct VocabFile {
  /// Appends a token and returns its id.
  TokenId Add(std::string text, std::int32_t type = kNormal, float score = 0);
  /// Appends the token `left + right` unless it is there, and the merge that leads to it.
  void Merge(std::string_view left, std::string_view right);
  /// The keys of the vocabulary; more can be added to the result.
  GgufWriter Writer() const;

  std::string model;
  std::optional<std::string> pre;
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;  ///< written for the model "llama" only
  std::vector<std::string> merges;
};

/// <unk>, <s>, </s> and the 256 byte tokens: ids 0 to 258, as in Llama's vocabulary.
VocabFile SpmVocab();
/// The 256 characters of byte-level vocabularies, in the order of the bytes they spell.
VocabFile BpeVocab(std::string_view pre);

/// Loads what `writer` writes.
Result<Tokenizer> LoadFrom(const GgufWriter& writer);
/// The same for what must load; the test fails with the message otherwise.
Tokenizer MustLoad(const GgufWriter& writer);
/// The ids of `text`; the test fails with the message if there are none.
std::vector<TokenId> MustEncode(const Tokenizer& tokenizer, std::string_view text,
                                const EncodeOptions& options = {});

/// $MANYHEAD_MODEL_DIR, or ~/.cache/manyhead/models.
std::filesystem::path ModelDirectory();

}  // namespace manyhead::testing
