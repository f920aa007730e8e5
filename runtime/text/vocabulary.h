#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// No token: what a search that finds nothing returns.
inline constexpr TokenId kNoToken = -1;

/// What a token is for; the numbers are those of tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,      ///< stands for text the vocabulary lacks
  kControl = 3,      ///< steers the model; no text of its own
  kUserDefined = 4,  ///< text that is always one token
  kUnused = 5,
  kByte = 6,  ///< "<0x41>" is the byte 0x41
};

/// How the texts of normal tokens spell bytes.
enum class TextForm : std::uint8_t {
  kSpaceEscaped,  ///< UTF-8 with U+2581 for a space
  kByteLevel,     ///< one printable character for each byte, as GPT-2 maps them
};

/// The character that spells `byte` in a byte-level vocabulary, in UTF-8.
std::string_view ByteLevelChar(std::uint8_t byte) noexcept;

/// `text` as SentencePiece-style vocabularies spell it: each space as U+2581, one more in front
/// with `prefix`.
std::string EscapeSpaces(std::string_view text, bool prefix);

/// The tokens of a vocabulary: text, kind, score and the bytes that each one decodes to.
class Vocabulary {
 public:
  /// Errors   kIoError naming the key and both values: no tokens, a type or score too many or too
  ///          few, a text twice, an unknown type, a byte token without a byte.
  static Result<Vocabulary> Load(const Metadata& metadata, TextForm form);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(kinds_.size()); }
  bool Contains(std::int64_t id) const noexcept { return id >= 0 && id < size(); }
  /// The id of the token with this text, or kNoToken.
  TokenId Find(std::string_view text) const noexcept;
  /// The id of the token that is met in a text where `spelling` stands, in the vocabulary's form:
  /// a token with this text whose piece is what the text spells. kNoToken for others: control
  /// tokens, and user-defined ones whose text is no spelling.
  TokenId FindText(std::string_view spelling) const;
  /// The token "<0x..>" of `byte`, or kNoToken; its piece is this byte.
  TokenId byte_token(std::uint8_t byte) const noexcept { return byte_tokens_[byte]; }

  // The rest wants an id that is contained.
  std::string_view text(TokenId id) const noexcept { return View(text_ends_, texts_, id); }
  /// The bytes that the token decodes to; the text itself of special tokens.
  std::string_view piece(TokenId id) const noexcept { return View(piece_ends_, pieces_, id); }
  TokenKind kind(TokenId id) const noexcept { return kinds_[static_cast<std::size_t>(id)]; }
  /// 0 if the file has no scores.
  float score(TokenId id) const noexcept {
    return scores_.empty() ? 0.0f : scores_[static_cast<std::size_t>(id)];
  }
  bool has_scores() const noexcept { return !scores_.empty(); }
  /// Whether the file declares what its tokens are for; without it all are normal but the bytes of
  /// a space-escaped vocabulary.
  bool has_kinds() const noexcept { return has_kinds_; }
  /// True for tokens that are no text: control and unknown ones.
  bool is_control(TokenId id) const noexcept {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }
  /// Bytes of its tables; of the index by text as far as the standard library shows them.
  std::int64_t memory_bytes() const noexcept;
  /// For a token whose role is told by other keys, or by its text where the file declares no types.
  /// The piece stays as it is.
  void set_kind(TokenId id, TokenKind kind) noexcept {
    kinds_[static_cast<std::size_t>(id)] = kind;
  }

 private:
  // Vectors, because views into them have to survive a move of the vocabulary.
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
