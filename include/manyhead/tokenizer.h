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

/// What of a text is read as special tokens.
struct EncodeOptions {
  /// Begin and end tokens as the model asks for; false adds none.
  bool add_special = true;
  /// Read control tokens such as "<|im_start|>" in the text as tokens; otherwise they are plain
  /// text. Tokens of the type "user defined", such as runs of spaces, are text and always read.
  bool parse_special = false;
};

/// Text to token ids and back, as the model was trained: SentencePiece-style or byte-level BPE.
///
/// Threads  immutable after loading; every method may be called concurrently.
class Tokenizer {
 public:
  /// From the metadata of a GGUF file, which need not hold tensors: tokenizer.ggml.model "llama",
  /// "gpt2" with a known tokenizer.ggml.pre, or "gemma4".
  /// Errors   kIoError for a bad file or vocabulary, kUnsupported naming the tokenizer model or
  ///          pre-tokenizer.
  static Result<Tokenizer> Load(const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes are accepted; bytes that are no valid UTF-8 become byte tokens where the vocabulary
  /// has them. Where the model's own tokenizer does so (Qwen2, GPT-NeoX, Command R), text is
  /// brought to Unicode's form NFC first, which is also what its ids decode to.
  ///
  /// Errors   kInvalidArgument when the vocabulary cannot express the text.
  Result<std::vector<TokenId>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  /// The bytes of one token, which may be a part of a UTF-8 character; empty for control tokens
  /// unless `special`, and for ids out of range.
  std::string_view Piece(TokenId id, bool special = false) const noexcept;

  /// The text of `ids`: control tokens left out unless `special`, the dummy space of SentencePiece
  /// dropped at the start.
  std::string Decode(std::span<const TokenId> ids, bool special = false) const;

  /// Tokens it knows; a model may have more rows.
  std::int64_t vocab_size() const noexcept;
  /// The token that begins a text, if there is one.
  std::optional<TokenId> bos() const noexcept;
  /// The token that ends a text, if there is one.
  std::optional<TokenId> eos() const noexcept;
  /// Whether Encode begins with bos().
  bool add_bos() const noexcept;
  /// Ids that end a generation: eos, eot, eom and what the model lists beside them; sorted.
  std::span<const TokenId> end_tokens() const noexcept;
  /// False for ids out of range.
  bool is_control(TokenId id) const noexcept;
  /// True when Decode drops one leading space of the first token.
  bool adds_dummy_prefix() const noexcept;
  std::string_view model_name() const noexcept;  ///< tokenizer.ggml.model
  std::string_view pre_name() const noexcept;    ///< tokenizer.ggml.pre, empty if none
  /// Bytes of its tables.
  std::int64_t memory_bytes() const noexcept;

  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl) noexcept;

 private:
  std::unique_ptr<const Impl> impl_;
};

/// Text of a stream of tokens, never splitting a UTF-8 character between two pieces.
class Detokenizer {
 public:
  /// `tokenizer` outlives it. `continues`: the tokens follow others, so that a leading space is
  /// part of the text and stays.
  explicit Detokenizer(const Tokenizer& tokenizer, bool special = false, bool continues = false);
  /// The text that is complete after `id`; bytes of an unfinished character wait for the next
  /// token.
  std::string Push(TokenId id);
  /// What waits: each byte of a character that was never finished comes out raw, so that the pieces
  /// put together always equal Tokenizer::Decode of the whole sequence.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool special_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace manyhead
