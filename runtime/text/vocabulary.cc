#include "runtime/text/vocabulary.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"
#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

constexpr const char* kName = "LoadTokenizer";

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

/// The mapping between bytes and characters: printable ASCII and Latin-1 spell themselves; the
/// other bytes use the characters from U+0100 on, in order.
struct ByteLevelAlphabet {
  std::array<std::array<char, 2>, 256> chars{};
  std::array<std::uint8_t, 256> lengths{};
  std::array<std::int16_t, 0x144> bytes{};  ///< indexed by code point; -1 for characters of no byte

  constexpr ByteLevelAlphabet() {
    bytes.fill(-1);
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
      const unsigned code = printable ? byte : next++;
      bytes[code] = static_cast<std::int16_t>(byte);
      if (code < 0x80) {
        chars[byte] = {static_cast<char>(code), 0};
        lengths[byte] = 1;
      } else {
        chars[byte] = {static_cast<char>(0xC0 | (code >> 6)),
                       static_cast<char>(0x80 | (code & 0x3F))};
        lengths[byte] = 2;
      }
    }
  }
};
constexpr ByteLevelAlphabet kAlphabet;

/// Appends the bytes that a byte-level text spells. A character that spells no byte is copied.
void AppendByteLevel(std::string_view text, std::vector<char>* out) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<std::uint8_t>(text[i]);
    const std::size_t length = Utf8CharLength(text.substr(i));
    unsigned code = std::numeric_limits<unsigned>::max();
    if (length == 1) code = lead;
    if (length == 2) code = ((lead & 0x1Fu) << 6) | (static_cast<std::uint8_t>(text[i + 1]) & 0x3F);
    const std::size_t used = length == 0 ? 1 : length;
    if (code < kAlphabet.bytes.size() && kAlphabet.bytes[code] >= 0) {
      out->push_back(static_cast<char>(kAlphabet.bytes[code]));
    } else {
      out->insert(out->end(), text.begin() + i, text.begin() + i + used);
    }
    i += used;
  }
}

void AppendUnescaped(std::string_view text, std::vector<char>* out) {
  while (!text.empty()) {
    const std::size_t at = text.find(kEscapedSpace);
    const std::string_view plain = text.substr(0, at);
    out->insert(out->end(), plain.begin(), plain.end());
    if (at == std::string_view::npos) return;
    out->push_back(' ');
    text.remove_prefix(at + kEscapedSpace.size());
  }
}

/// Appends the bytes that the text of a normal token spells.
void AppendSpelled(TextForm form, std::string_view text, std::vector<char>* out) {
  if (form == TextForm::kByteLevel) {
    AppendByteLevel(text, out);
  } else {
    AppendUnescaped(text, out);
  }
}

/// Checks that an array of the file has one entry for each of `count` tokens, or is absent.
Status CheckCount(std::string_view key, std::int64_t entries, std::size_t count) {
  if (static_cast<std::size_t>(entries) == count) return Status();
  return IoError(kName, key, " has ", entries, " entries; expected ", count,
                 " as tokenizer.ggml.tokens has");
}

}  // namespace

std::string_view ByteLevelChar(std::uint8_t byte) noexcept {
  return {kAlphabet.chars[byte].data(), kAlphabet.lengths[byte]};
}

std::string ByteLevelText(std::string_view text) {
  std::vector<char> bytes;
  AppendByteLevel(text, &bytes);
  return {bytes.begin(), bytes.end()};
}

std::optional<std::uint8_t> ByteOfToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  std::uint8_t value = 0;
  const char* end = text.data() + 5;
  const auto [parsed, error] = std::from_chars(text.data() + 3, end, value, 16);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return value;
}

std::string EscapeSpaces(std::string_view text, bool prefix) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2 + kEscapedSpace.size());
  if (prefix) escaped += kEscapedSpace;
  for (const char c : text) {
    if (c == ' ') {
      escaped += kEscapedSpace;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

Result<Vocabulary> Vocabulary::Load(const Metadata& metadata, TextForm form) {
  Result<std::optional<std::vector<std::string_view>>> tokens = metadata.GetStrings(kTokensKey);
  if (!tokens.ok()) return tokens.status();
  if (!tokens->has_value()) return IoError(kName, kTokensKey, " is missing");
  const std::vector<std::string_view>& texts = **tokens;
  if (texts.empty()) return IoError(kName, kTokensKey, " has 0 entries; expected at least 1");
  if (texts.size() > static_cast<std::size_t>(std::numeric_limits<TokenId>::max())) {
    return IoError(kName, kTokensKey, " has ", texts.size(), " entries; expected at most ",
                   std::numeric_limits<TokenId>::max());
  }

  Vocabulary vocabulary;
  vocabulary.form_ = form;
  std::size_t bytes = 0;
  for (std::string_view text : texts) bytes += text.size();
  vocabulary.texts_.reserve(bytes);
  vocabulary.text_ends_.reserve(texts.size());
  for (std::string_view text : texts) {
    vocabulary.texts_.insert(vocabulary.texts_.end(), text.begin(), text.end());
    vocabulary.text_ends_.push_back(vocabulary.texts_.size());
  }
  // The lengths are checked before the arrays are copied: one may be as long as the file. 0:
  // absent, or empty.
  for (const std::string_view key : {kTypesKey, kScoresKey}) {
    const std::int64_t entries = metadata.Count(key);
    if (Status status = CheckCount(key, entries, texts.size()); entries != 0 && !status.ok())
      return status;
  }
  if (Status status = vocabulary.ReadKinds(metadata); !status.ok()) return status;
  if (Status status = vocabulary.ReadScores(metadata); !status.ok()) return status;
  if (Status status = vocabulary.IndexTexts(); !status.ok()) return status;
  if (Status status = vocabulary.BuildPieces(); !status.ok()) return status;
  return vocabulary;
}

Vocabulary Vocabulary::Of(const std::vector<Token>& tokens) {
  Vocabulary vocabulary;
  vocabulary.has_kinds_ = true;
  vocabulary.byte_tokens_.fill(kNoToken);
  for (const Token& token : tokens) {
    vocabulary.texts_.insert(vocabulary.texts_.end(), token.text.begin(), token.text.end());
    vocabulary.text_ends_.push_back(vocabulary.texts_.size());
    vocabulary.pieces_.insert(vocabulary.pieces_.end(), token.piece.begin(), token.piece.end());
    vocabulary.piece_ends_.push_back(vocabulary.pieces_.size());
    vocabulary.kinds_.push_back(token.kind);
  }
  return vocabulary;
}

Status Vocabulary::ReadKinds(const Metadata& metadata) {
  const std::size_t count = text_ends_.size();
  kinds_.assign(count, TokenKind::kNormal);
  Result<std::optional<std::vector<std::int64_t>>> types = metadata.GetInts(kTypesKey);
  if (!types.ok()) return types.status();
  has_kinds_ = types->has_value();
  if (!has_kinds_) {
    for (TokenId id = 0; id < size() && form_ == TextForm::kSpaceEscaped; ++id)
      if (ByteOfToken(text(id))) set_kind(id, TokenKind::kByte);
    return {};
  }
  const std::vector<std::int64_t>& values = **types;
  if (Status status = CheckCount(kTypesKey, std::ssize(values), count); !status.ok()) return status;
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] > static_cast<int>(TokenKind::kByte)) {
      return IoError(kName, kTypesKey, "[", i, "] = ", values[i], "; expected 0..6");
    }
    kinds_[i] = static_cast<TokenKind>(values[i]);
  }
  return {};
}

Status Vocabulary::ReadScores(const Metadata& metadata) {
  const std::size_t count = text_ends_.size();
  Result<std::optional<std::vector<float>>> scores = metadata.GetFloats(kScoresKey);
  if (!scores.ok()) return scores.status();
  if (!scores->has_value()) return {};
  scores_ = std::move(**scores);
  if (Status status = CheckCount(kScoresKey, std::ssize(scores_), count); !status.ok())
    return status;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(scores_[i])) return IoError(kName, kScoresKey, "[", i, "] is not a number");
  }
  return {};
}

Status Vocabulary::IndexTexts() {
  byte_tokens_.fill(kNoToken);
  ids_.reserve(kinds_.size());
  for (TokenId id = 0; id < size(); ++id) {
    // An empty text matches nothing, so any number of tokens may have it.
    if (text(id).empty()) continue;
    const auto [found, inserted] = ids_.emplace(text(id), id);
    if (!inserted) {
      return IoError(kName, kTokensKey, ": tokens ", found->second, " and ", id, " are both '",
                     Printable(text(id)), "'");
    }
    if (kind(id) != TokenKind::kByte) continue;
    // Where "<0x0a>" and "<0x0A>" are both tokens, the later one counts.
    if (const std::optional<std::uint8_t> byte = ByteOfToken(text(id))) byte_tokens_[*byte] = id;
  }
  return {};
}

Status Vocabulary::BuildPieces() {
  pieces_.reserve(texts_.size());
  piece_ends_.reserve(kinds_.size());
  for (TokenId id = 0; id < size(); ++id) {
    switch (kind(id)) {
      case TokenKind::kNormal:
        AppendSpelled(form_, text(id), &pieces_);
        break;
      case TokenKind::kUnknown:
      case TokenKind::kControl:
      case TokenKind::kUserDefined:
        pieces_.insert(pieces_.end(), text(id).begin(), text(id).end());
        break;
      case TokenKind::kByte: {
        const std::optional<std::uint8_t> byte = ByteOfToken(text(id));
        if (!byte) {
          return IoError(kName, kTokensKey, "[", id, "] = '", Printable(text(id)),
                         "' is of type byte; expected the form '<0x41>'");
        }
        pieces_.push_back(static_cast<char>(*byte));
        break;
      }
      case TokenKind::kUndefined:
      case TokenKind::kUnused:
        break;
    }
    piece_ends_.push_back(pieces_.size());
  }
  return {};
}

std::int64_t Vocabulary::memory_bytes() const noexcept {
  // A node holds a link, the entry and its hash, and malloc's own word before it.
  constexpr std::size_t kNodeBytes =
      sizeof(void*) + sizeof(decltype(ids_)::value_type) + 2 * sizeof(std::size_t);
  return static_cast<std::int64_t>(
      texts_.capacity() + pieces_.capacity() +
      (text_ends_.capacity() + piece_ends_.capacity()) * sizeof(std::size_t) +
      kinds_.capacity() * sizeof(TokenKind) + scores_.capacity() * sizeof(float) +
      ids_.size() * kNodeBytes + ids_.bucket_count() * sizeof(void*));
}

TokenId Vocabulary::Find(std::string_view text) const noexcept {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNoToken : found->second;
}

TokenId Vocabulary::FindText(std::string_view spelling) const {
  const TokenId id = Find(spelling);
  if (id == kNoToken || kind(id) == TokenKind::kNormal) return id;
  if (kind(id) != TokenKind::kUserDefined) return kNoToken;
  std::vector<char> spelled;
  AppendSpelled(form_, spelling, &spelled);
  return piece(id) == std::string_view(spelled.data(), spelled.size()) ? id : kNoToken;
}

}  // namespace manyhead
