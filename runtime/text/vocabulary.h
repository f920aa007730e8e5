#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// The result of a search that finds no token.
inline constexpr TokenId kNoToken = -1;

/// The kinds of tokens; the numbers are those of tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,      ///< stands for text the vocabulary lacks
  kControl = 3,      ///< controls the model; has no text of its own
  kUserDefined = 4,  ///< text that is always one token
  kUnused = 5,
  kByte = 6,  ///< "<0x41>" is the byte 0x41
};

/// Says how the texts of normal tokens spell bytes.
enum class TextForm : std::uint8_t {
  kSpaceEscaped,  ///< UTF-8 with U+2581 for a space
  kByteLevel,     ///< one printable character for each byte, as GPT-2 maps them
};

/// Returns the character that spells `byte` in a byte-level vocabulary, in UTF-8.
std::string_view ByteLevelChar(std::uint8_t byte) noexcept;

/// Returns the bytes that a byte-level text spells. A character that spells none stays as it is.
std::string ByteLevelText(std::string_view text);

/// Returns the byte of "<0x41>"; nothing for another text.
std::optional<std::uint8_t> ByteOfToken(std::string_view text);

/// Returns `text` in the spelling of SentencePiece-style vocabularies: each space becomes U+2581,
/// and one more precedes the text with `prefix`.
std::string EscapeSpaces(std::string_view text, bool prefix);

/// The tokens of a vocabulary: text, kind, score and the bytes that each one decodes to.
class Vocabulary {
 public:
  /// Errors   kIoError naming the key and both values: no tokens, too many or too few types or
  ///          scores, a repeated text, an unknown type, a byte token without a byte.
  static Result<Vocabulary> Load(const Metadata& metadata, TextForm form);

  /// One token of a vocabulary that is read from elsewhere.
  struct Token {
    std::string text, piece;
    TokenKind kind = TokenKind::kNormal;
  };
  /// Without scores and without an index by text: Find finds nothing.
  static Vocabulary Of(const std::vector<Token>& tokens);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(kinds_.size()); }
  bool Contains(std::int64_t id) const noexcept { return id >= 0 && id < size(); }
  /// Returns the id of the token with this text, or kNoToken.
  TokenId Find(std::string_view text) const noexcept;
  /// Returns the id of the token that encoding produces for `spelling`, in the vocabulary's form: a
  /// token with this text whose piece is what the text spells. Returns kNoToken for others: control
  /// tokens, and user-defined ones whose text is no spelling.
  TokenId FindText(std::string_view spelling) const;
  /// Returns the token "<0x..>" of `byte`, or kNoToken; its piece is this byte.
  TokenId byte_token(std::uint8_t byte) const noexcept { return byte_tokens_[byte]; }

  // The following functions need a valid id.
  std::string_view text(TokenId id) const noexcept { return View(text_ends_, texts_, id); }
  /// The bytes that the token decodes to; for special tokens the text itself.
  std::string_view piece(TokenId id) const noexcept { return View(piece_ends_, pieces_, id); }
  TokenKind kind(TokenId id) const noexcept { return kinds_[static_cast<std::size_t>(id)]; }
  /// 0 if the file has no scores.
  float score(TokenId id) const noexcept {
    return scores_.empty() ? 0.0f : scores_[static_cast<std::size_t>(id)];
  }
  bool has_scores() const noexcept { return !scores_.empty(); }
  /// Returns true where the file declares the kinds of its tokens; otherwise all are normal except
  /// the bytes of a space-escaped vocabulary.
  bool has_kinds() const noexcept { return has_kinds_; }
  /// Returns true for tokens without text: control and unknown ones.
  bool is_control(TokenId id) const noexcept {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }
  /// The bytes of its tables; for the index by text as far as the standard library shows them.
  std::int64_t memory_bytes() const noexcept;
  /// Sets the kind of a token whose role other keys state, or its text where the file declares no
  /// types. The piece stays the same.
  void set_kind(TokenId id, TokenKind kind) noexcept {
    kinds_[static_cast<std::size_t>(id)] = kind;
  }

 private:
  // These are vectors, because views into them must survive a move of the vocabulary.
  using Bytes = std::vector<char>;

  static std::string_view View(const std::vector<std::size_t>& ends, const Bytes& bytes,
                               TokenId id) noexcept {
    const auto i = static_cast<std::size_t>(id);
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return {bytes.data() + begin, ends[i] - begin};
  }
  Status ReadKinds(const Metadata& metadata);
  Status ReadScores(const Metadata& metadata);
  Status IndexTexts();
  Status BuildPieces();

  TextForm form_ = TextForm::kByteLevel;
  bool has_kinds_ = false;
  Bytes texts_;
  std::vector<std::size_t> text_ends_;
  Bytes pieces_;
  std::vector<std::size_t> piece_ends_;
  std::vector<TokenKind> kinds_;
  std::vector<float> scores_;
  std::unordered_map<std::string_view, TokenId> ids_;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace manyhead
