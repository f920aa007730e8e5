#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/platform/printable.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"
#include "runtime/text/word_model.h"

namespace manyhead {
namespace {

using Made = Result<std::unique_ptr<const WordModel>>;

/// The cost of an unknown character beside the lowest score.
constexpr double kUnknownPenalty = 10;

/// Unigram: of all ways to cut a word into tokens, the one whose scores have the highest sum, of
/// equal ones the one whose last token begins first.
class UnigramModel final : public WordModel {
 public:
  static Made Create(const JsonPart& json);

  Status Append(std::string_view word, std::vector<TokenId>* ids) const override;
  std::int64_t memory_bytes() const noexcept override {
    return WordModel::memory_bytes() +
           static_cast<std::int64_t>(scores_.capacity() * sizeof(double));
  }

 private:
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
  /// The best way to reach a place in a word.
  struct Path {
    double score = 0;
    std::size_t begin = kNowhere;  ///< beginning of its last token
    TokenId id = kNoToken;         ///< kNoToken: a character that no token has
  };

  Status ReadTokens(const JsonPart& json);
  std::vector<Path> FindPaths(std::string_view word) const;
  Status AppendUnknown(std::string_view text, std::vector<TokenId>* ids) const;

  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::size_t longest_ = 0;  // bytes of a token
  bool byte_fallback_ = false;
};

Status UnigramModel::ReadTokens(const JsonPart& json) {
  const JsonPart::Json& tokens = json.json();
  if (!tokens.is_array() || tokens.empty() || tokens.size() > static_cast<std::size_t>(kMaxTokens))
    return json.Wrong("a list of tokens and their scores");
  double lowest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const JsonPart::Json& token = tokens[i];
    if (!token.is_array() || token.size() != 2 || !token[0].is_string() || !token[1].is_number() ||
        !std::isfinite(token[1].get<double>()))
      return json[i].Wrong("a list of a token and its score");
    const std::string& text = token[0].get_ref<const std::string&>();
    longest_ = std::max(longest_, text.size());
    ids_[text] = static_cast<TokenId>(i);
    scores_.push_back(token[1].get<double>());
    lowest = std::min(lowest, scores_.back());
  }
  unknown_score_ = lowest - kUnknownPenalty;
  return {};
}

Made UnigramModel::Create(const JsonPart& json) {
  Status status;
  auto model = std::make_unique<UnigramModel>();
  model->byte_fallback_ = json.Bool("byte_fallback", false, &status);
  if (status.ok()) status = model->ReadTokens(json["vocab"]);
  if (status.ok())
    model->unknown_ = static_cast<TokenId>(json.Int(
        "unk_id", 0, static_cast<std::int64_t>(model->scores_.size()) - 1, kNoToken, &status));
  if (!status.ok()) return status;
  return Made(std::move(model));
}

std::vector<UnigramModel::Path> UnigramModel::FindPaths(std::string_view word) const {
  std::vector<Path> paths(word.size() + 1);
  for (std::size_t begin = 0, size = 0; begin < word.size(); begin += size) {
    FirstChar(word.substr(begin), &size);
    const double so_far = paths[begin].score;
    bool has_character = false;
    const auto consider = [&](std::size_t end, double score, TokenId id) {
      Path& path = paths[end];
      if (path.begin == kNowhere || so_far + score > path.score) path = {so_far + score, begin, id};
    };
    const std::size_t last = std::min(word.size(), begin + longest_);
    for (std::size_t end = begin + size; end <= last;) {
      const TokenId id = Find(word.substr(begin, end - begin));
      if (id != kNoToken) {
        consider(end, scores_[static_cast<std::size_t>(id)], id);
        has_character = has_character || end == begin + size;
      }
      do ++end;
      while (end < word.size() && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80);
    }
    if (!has_character) consider(begin + size, unknown_score_, kNoToken);
  }
  return paths;
}

Status UnigramModel::AppendUnknown(std::string_view text, std::vector<TokenId>* ids) const {
  if (byte_fallback_ && AppendBytes(text, ids)) return {};
  if (unknown_ == kNoToken)
    return InvalidArgument("Encode", "'", Printable(text),
                           "' has no token, and there is no unknown token");
  ids->push_back(unknown_);
  return {};
}

Status UnigramModel::Append(std::string_view word, std::vector<TokenId>* ids) const {
  const std::vector<Path> paths = FindPaths(word);
  std::vector<const Path*> taken;
  std::vector<std::size_t> ends;
  for (std::size_t end = word.size(); end > 0; end = paths[end].begin) {
    taken.push_back(&paths[end]);
    ends.push_back(end);
  }
  // Neighbours without a token are one unknown text.
  std::size_t unknown_begin = kNowhere;
  for (std::size_t i = taken.size(); i-- > 0;) {
    const bool unknown = taken[i]->id == kNoToken || taken[i]->id == unknown_;
    if (unknown && unknown_begin == kNowhere) unknown_begin = taken[i]->begin;
    if (!unknown) {
      if (unknown_begin != kNowhere)
        if (Status status =
                AppendUnknown(word.substr(unknown_begin, taken[i]->begin - unknown_begin), ids);
            !status.ok())
          return status;
      unknown_begin = kNowhere;
      ids->push_back(taken[i]->id);
    }
  }
  if (unknown_begin == kNowhere) return {};
  return AppendUnknown(word.substr(unknown_begin), ids);
}

}  // namespace

Result<std::unique_ptr<const WordModel>> MakeUnigramModel(const JsonPart& json) {
  return UnigramModel::Create(json);
}

}  // namespace manyhead
