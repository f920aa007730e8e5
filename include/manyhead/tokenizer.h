#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// Says which parts of a text are read as special tokens.
struct EncodeOptions {
  /// Whether to add begin and end tokens as the model asks for; false adds none.
  bool add_special = true;
  /// Whether control tokens such as "<|im_start|>" in the text are read as tokens; otherwise they
  /// are plain text. Tokens of the type "user defined", such as runs of spaces, are text and always
  /// read.
  bool parse_special = false;
};

/// Converts text to token ids and back, as the model was trained: SentencePiece-style or byte-level
/// BPE.
///
/// Threads  immutable after loading; every method may be called concurrently.
class Tokenizer {
 public:
  /// Loads a tokenizer from the metadata of a GGUF file, which need not hold tensors:
  /// tokenizer.ggml.model "llama", "gpt2" with a known tokenizer.ggml.pre, or "gemma4".
  /// Errors   kIoError for a bad file or vocabulary, kUnsupported naming the tokenizer model or
  ///          pre-tokenizer.
  static Result<Tokenizer> Load(const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Returns the token ids of a text. Any bytes are accepted; bytes that are not valid UTF-8 become
  /// byte tokens where the vocabulary has them. Where the model's own tokenizer does so (Qwen2,
  /// GPT-NeoX, Command R), text is converted to Unicode's form NFC first, and its ids decode to
  /// that form.
  ///
  /// Errors   kInvalidArgument when the vocabulary cannot express the text.
  Result<std::vector<TokenId>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  /// Returns the bytes of one token, which may be a part of a UTF-8 character; empty for control
  /// tokens unless `special`, and for ids out of range.
  std::string_view Piece(TokenId id, bool special = false) const noexcept;

  /// Returns the text of `ids`, without control tokens unless `special`, and without the dummy
  /// space that SentencePiece adds at the start.
  std::string Decode(std::span<const TokenId> ids, bool special = false) const;

  /// Number of tokens in the vocabulary; the embedding of a model may have more rows.
  std::int64_t vocab_size() const noexcept;
  /// The token that begins a sequence, if there is one.
  std::optional<TokenId> bos() const noexcept;
  /// The token that ends a sequence, if there is one.
  std::optional<TokenId> eos() const noexcept;
  /// Returns true where Encode begins with bos().
  bool add_bos() const noexcept;
  /// The ids that end a generation: eos, eot, eom and others that the model lists; sorted.
  std::span<const TokenId> end_tokens() const noexcept;
  /// Returns true for control tokens; false also for ids out of range.
  bool is_control(TokenId id) const noexcept;
  /// Returns true where Decode drops one leading space of the first token.
  bool adds_dummy_prefix() const noexcept;
  std::string_view model_name() const noexcept;  ///< value of tokenizer.ggml.model
  /// Value of tokenizer.ggml.pre; empty if there is none.
  std::string_view pre_name() const noexcept;
  /// Bytes of its tables.
  std::int64_t memory_bytes() const noexcept;

  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl) noexcept;

 private:
  std::unique_ptr<const Impl> impl_;
};

/// Converts a stream of tokens to text, without splitting a UTF-8 character between two pieces.
class Detokenizer {
 public:
  /// `tokenizer` must outlive the detokenizer. `continues`: the tokens follow others, so a leading
  /// space is part of the text and is kept.
  explicit Detokenizer(const Tokenizer& tokenizer, bool special = false, bool continues = false);
  /// Adds a token and returns the text that is complete after it; bytes of an unfinished character
  /// are kept for the next token.
  std::string Push(TokenId id);
  /// Returns the bytes that are still kept: each byte of an unfinished character as it is, so that
  /// all pieces together always equal Tokenizer::Decode of the whole sequence.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool special_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace manyhead
