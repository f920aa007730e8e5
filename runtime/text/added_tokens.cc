#include "runtime/text/added_tokens.h"

#include <algorithm>
#include <set>

#include "runtime/text/unicode.h"

namespace manyhead {
namespace {

/// Returns where the white space at the end of `text` begins.
std::size_t SpaceAtEnd(std::string_view text) {
  while (!text.empty() && IsWhiteSpace(LastChar(text))) {
    do text.remove_suffix(1);
    while (!text.empty() && (static_cast<unsigned char>(text.data()[text.size()]) & 0xC0) == 0x80);
  }
  return text.size();
}

/// Returns the bytes of white space that `text` begins with.
std::size_t SpaceAtStart(std::string_view text) {
  std::size_t at = 0;
  for (std::size_t size = 0; at < text.size(); at += size)
    if (!IsWhiteSpace(FirstChar(text.substr(at), &size))) break;
  return at;
}

/// Returns true where no letter or digit stands beside the bytes [begin, end) of `text`.
bool StandsAlone(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t size = 0;
  const bool left = begin == 0 || !IsWordChar(LastChar(text.substr(0, begin)));
  const bool right = end == text.size() || !IsWordChar(FirstChar(text.substr(end), &size));
  return left && right;
}

}  // namespace

Result<std::vector<AddedToken>> ReadAddedTokens(const JsonPart& json) {
  std::vector<AddedToken> tokens;
  if (json.json().is_null()) return tokens;
  if (!json.json().is_array()) return json.Wrong("a list");
  for (std::size_t i = 0; i < json.json().size(); ++i) {
    const JsonPart one = json[i];
    Status status;
    AddedToken token;
    token.id = static_cast<TokenId>(one.Int("id", 0, kMaxTokens - 1, -1, &status));
    token.text = one.String("content", "", &status);
    token.single_word = one.Bool("single_word", false, &status);
    token.strip_left = one.Bool("lstrip", false, &status);
    token.strip_right = one.Bool("rstrip", false, &status);
    token.special = one.Bool("special", false, &status);
    token.normalized = one.Bool("normalized", !token.special, &status);
    if (!status.ok()) return status;
    if (token.id < 0) return one.Wrong("a token with an id and a content");
    if (!token.text.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized) {
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized) tokens_.push_back(token);
  Index();
}

Status AddedTokenFinder::Normalize(const TextNormalizer& normalizer) {
  for (AddedToken& token : tokens_)
    if (Status status = normalizer.Apply(&token.text); !status.ok()) return status;
  Index();
  return {};
}

void AddedTokenFinder::Index() {
  by_text_.clear();
  std::array<std::set<std::size_t, std::greater<>>, 256> lengths;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i].text;
    if (text.empty()) continue;
    by_text_.emplace(text, i);
    lengths[static_cast<unsigned char>(text.front())].insert(text.size());
  }
  for (std::size_t byte = 0; byte < lengths.size(); ++byte)
    lengths_[byte].assign(lengths[byte].begin(), lengths[byte].end());
}

const AddedToken* AddedTokenFinder::Match(std::string_view text, std::size_t at) const {
  for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    if (length > text.size() - at) continue;
    const auto found = by_text_.find(text.substr(at, length));
    if (found != by_text_.end()) return &tokens_[found->second];
  }
  return nullptr;
}

std::vector<Fragment> AddedTokenFinder::Split(std::string_view text, bool parse_special) const {
  std::vector<Fragment> fragments;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* const token = Match(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && !StandsAlone(text, begin, end)) continue;
    begin = std::max(done, token->strip_left ? SpaceAtEnd(text.substr(0, begin)) : begin);
    if (token->strip_right) end += SpaceAtStart(text.substr(end));
    if (begin > done) fragments.push_back({kNoToken, text.substr(done, begin - done)});
    fragments.push_back({token->id, {}});
    done = std::max(done, end);
  }
  if (done < text.size()) fragments.push_back({kNoToken, text.substr(done)});
  return fragments;
}

}  // namespace manyhead
