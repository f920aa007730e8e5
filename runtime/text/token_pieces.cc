#include "runtime/text/token_pieces.h"

#include <utility>
#include <vector>

#include "runtime/text/vocabulary.h"

namespace manyhead {
namespace {

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

/// The steps of a decoder that is a sequence: ByteFallback, Fuse, a Replace by a space, a Strip of
/// one space at the start, Metaspace or ByteLevel.
Status ReadSequence(const JsonPart& json, PieceRule* rule) {
  Status status;
  const std::size_t count = json.Count("decoders", &status);
  rule->kind = PieceRule::Kind::kReplaced;
  rule->drops_space = false;
  for (std::size_t i = 0; i < count && status.ok(); ++i) {
    const JsonPart step = json["decoders"][i];
    const std::string type = step.String("type", "", &status);
    if (type == "Fuse") continue;
    if (type == "ByteFallback") {
      rule->byte_tokens = true;
    } else if (type == "Replace" && step.String("content", "", &status) == " " &&
               rule->mark.empty()) {
      rule->mark = step["pattern"].String("String", "", &status);
      if (status.ok() && rule->mark.empty()) return step["pattern"].Wrong("a String");
    } else if (type == "Strip" && step.String("content", "", &status) == " " &&
               step.Int("start", 0, 1, 0, &status) == 1 &&
               step.Int("stop", 0, 1, 0, &status) == 0) {
      rule->drops_space = true;
    } else if (type == "Metaspace" || type == "ByteLevel") {
      const bool bytes = rule->byte_tokens;
      Result<PieceRule> whole = ReadPieceRule(step);
      if (!whole.ok()) return whole.status();
      *rule = *std::move(whole);
      rule->byte_tokens = bytes;
    } else if (status.ok()) {
      return step.NotSupported("type",
                               "ByteFallback, Fuse, a Replace by \" \", a Strip of one \" \" at "
                               "the start, Metaspace or ByteLevel");
    }
  }
  return status;
}

Status ReadMetaspace(const JsonPart& json, PieceRule* rule) {
  Status status;
  rule->kind = PieceRule::Kind::kReplaced;
  rule->mark = json.String("replacement", "\xE2\x96\x81", &status);
  const bool add = json.Bool("add_prefix_space", true, &status);
  rule->drops_space = json.String("prepend_scheme", add ? "always" : "never", &status) != "never";
  if (status.ok() && rule->mark.empty()) return json["replacement"].Wrong("a character");
  return status;
}

}  // namespace

Result<PieceRule> ReadPieceRule(const JsonPart& json) {
  PieceRule rule;
  if (json.json().is_null()) return rule;
  Status status;
  const std::string type = json.String("type", "", &status);
  if (!status.ok()) return status;
  if (type == "ByteLevel") {
    rule.kind = PieceRule::Kind::kByteLevel;
    rule.drops_space = false;
  } else if (type == "Metaspace") {
    status = ReadMetaspace(json, &rule);
  } else if (type == "WordPiece") {
    rule.kind = PieceRule::Kind::kWordPiece;
    rule.mark = json.String("prefix", "##", &status);
    rule.cleans_up = json.Bool("cleanup", true, &status);
  } else if (type == "Sequence") {
    status = ReadSequence(json, &rule);
  } else {
    return json.NotSupported("type", "ByteLevel, Metaspace, WordPiece or Sequence");
  }
  if (!status.ok()) return status;
  return rule;
}

std::string PieceOf(const PieceRule& rule, std::string_view token) {
  switch (rule.kind) {
    case PieceRule::Kind::kByteLevel:
      return ByteLevelText(token);
    case PieceRule::Kind::kReplaced:
      if (rule.byte_tokens)
        if (const std::optional<std::uint8_t> byte = ByteOfToken(token))
          return std::string(1, static_cast<char>(*byte));
      return rule.mark.empty() ? std::string(token) : Replaced(token, rule.mark, " ");
    case PieceRule::Kind::kWordPiece: {
      const bool continues = !rule.mark.empty() && token.starts_with(rule.mark);
      std::string piece =
          continues ? std::string(token.substr(rule.mark.size())) : " " + std::string(token);
      if (!rule.cleans_up) return piece;
      constexpr std::pair<std::string_view, std::string_view> kSteps[] = {
          {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
      for (const auto& [from, to] : kSteps) piece = Replaced(piece, from, to);
      return piece;
    }
    case PieceRule::Kind::kSpaced:
      break;
  }
  return " " + std::string(token);
}

}  // namespace manyhead
