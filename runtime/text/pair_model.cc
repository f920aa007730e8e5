#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "runtime/platform/printable.h"
#include "runtime/text/merge_table.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"
#include "runtime/text/word_model.h"

namespace manyhead {
namespace {

using Made = Result<std::unique_ptr<const WordModel>>;

constexpr std::int32_t kNone = -1;

/// Byte-pair encoding as tokenizer.json has it: a word starts as its characters, and the pair of
/// neighbours whose merge has the lowest rank is joined first, of equal ones the leftmost. A
/// character that is no token becomes byte tokens, where the file says so, or the unknown token.
class PairModel final : public WordModel {
 public:
  static Made Create(const JsonPart& json);

  Status Append(std::string_view word, std::vector<TokenId>* ids) const override;
  std::int64_t memory_bytes() const noexcept override {
    return WordModel::memory_bytes() + merges_.memory_bytes();
  }

 private:
  struct Symbol {
    TokenId id;
    std::int32_t previous, next;
    bool joined;  ///< to its left neighbour
  };
  struct Merge {
    MergeRule rule;
    std::int32_t left;
    friend bool operator<(const Merge& a, const Merge& b) {  // a is taken after b
      return a.rule.rank > b.rule.rank || (a.rule.rank == b.rule.rank && a.left > b.left);
    }
  };

  explicit PairModel(std::size_t num_merges) : merges_(num_merges) {}
  Status ReadOptions(const JsonPart& json);
  Status ReadMerge(const JsonPart& json, std::int32_t rank);
  void AppendCharacters(std::string_view word, std::vector<TokenId>* ids) const;
  void JoinAll(std::vector<Symbol>* symbols) const;

  MergeTable merges_;
  std::string continuing_prefix_, end_suffix_;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

Status PairModel::ReadOptions(const JsonPart& json) {
  Status status;
  if (json.Has("dropout") && json["dropout"].json() != 0.0)
    return json.NotSupported("dropout", "null: encoding has to give the same ids every time");
  continuing_prefix_ = json.String("continuing_subword_prefix", "", &status);
  end_suffix_ = json.String("end_of_word_suffix", "", &status);
  fuse_unknown_ = json.Bool("fuse_unk", false, &status);
  byte_fallback_ = json.Bool("byte_fallback", false, &status);
  ignore_merges_ = json.Bool("ignore_merges", false, &status);
  const std::string unknown = json.String("unk_token", "", &status);
  if (status.ok()) status = ReadTokenIds(json["vocab"], &ids_);
  if (!status.ok()) return status;
  // An empty or absent name is a model without such a token.
  unknown_ = unknown.empty() ? kNoToken : Find(unknown);
  if (!unknown.empty() && unknown_ == kNoToken)
    return json["unk_token"].Wrong("a token of the vocabulary");
  return {};
}

/// Older files have a merge as one string, newer ones as a list of two.
Status PairModel::ReadMerge(const JsonPart& json, std::int32_t rank) {
  const JsonPart::Json& merge = json.json();
  std::string left, right;
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    left = merge[0].get<std::string>();
    right = merge[1].get<std::string>();
  } else if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return json.Wrong("two tokens with a space between them");
    left = text.substr(0, space);
    right = text.substr(space + 1);
  } else {
    return json.Wrong("a list of two tokens");
  }
  const bool continues = !continuing_prefix_.empty() && right.starts_with(continuing_prefix_);
  const std::string whole = left + (continues ? right.substr(continuing_prefix_.size()) : right);
  const TokenId left_id = Find(left), right_id = Find(right), whole_id = Find(whole);
  if (left_id == kNoToken || right_id == kNoToken || whole_id == kNoToken)
    return IoError("tokenizer.json", json.path(), " = ", ShowJson(merge), ": '",
                   Printable(left_id == kNoToken    ? left
                             : right_id == kNoToken ? right
                                                    : whole),
                   "' is not a token");
  merges_.Insert(left_id, right_id, {rank, whole_id});
  return {};
}

Made PairModel::Create(const JsonPart& json) {
  Status status;
  const std::size_t count = json.Count("merges", &status);
  if (!status.ok()) return status;
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() / 4))
    return json["merges"].Wrong("a shorter list");
  std::unique_ptr<PairModel> model(new PairModel(count));
  if (status = model->ReadOptions(json); !status.ok()) return status;
  const JsonPart merges = json["merges"];
  for (std::size_t i = 0; i < count; ++i)
    if (status = model->ReadMerge(merges[i], static_cast<std::int32_t>(i)); !status.ok())
      return status;
  return Made(std::move(model));
}

void PairModel::AppendCharacters(std::string_view word, std::vector<TokenId>* ids) const {
  bool after_unknown = false;
  std::string text;
  for (std::size_t at = 0, size = 0; at < word.size(); at += size) {
    FirstChar(word.substr(at), &size);
    text = at > 0 ? continuing_prefix_ : std::string();
    text += word.substr(at, size);
    if (at + size == word.size()) text += end_suffix_;
    if (const TokenId id = Find(text); id != kNoToken) {
      ids->push_back(id);
      after_unknown = false;
      continue;
    }
    if (byte_fallback_ && AppendBytes(text, ids)) {
      after_unknown = false;
      continue;
    }
    if (unknown_ != kNoToken && !(after_unknown && fuse_unknown_)) ids->push_back(unknown_);
    after_unknown = unknown_ != kNoToken;
  }
}

void PairModel::JoinAll(std::vector<Symbol>* symbols) const {
  std::vector<Symbol>& all = *symbols;
  const auto at = [&](std::int32_t i) -> Symbol& { return all[static_cast<std::size_t>(i)]; };
  std::vector<Merge> found;
  for (std::int32_t left = 0; left + 1 < static_cast<std::int32_t>(all.size()); ++left)
    if (const MergeRule* rule = merges_.Find(at(left).id, at(left + 1).id))
      found.push_back({*rule, left});
  std::priority_queue<Merge> queue({}, std::move(found));
  const auto consider = [&](std::int32_t left, std::int32_t right) {
    if (left == kNone || right == kNone) return;
    if (const MergeRule* rule = merges_.Find(at(left).id, at(right).id)) queue.push({*rule, left});
  };
  while (!queue.empty()) {
    const Merge merge = queue.top();
    queue.pop();
    Symbol& left = at(merge.left);
    if (left.joined || left.next == kNone) continue;
    Symbol& right = at(left.next);
    // The neighbours may have changed since, and still make the same token.
    const MergeRule* const now = merges_.Find(left.id, right.id);
    if (now == nullptr || now->result != merge.rule.result) continue;
    left.id = merge.rule.result;
    left.next = right.next;
    right.joined = true;
    if (left.next != kNone) at(left.next).previous = merge.left;
    consider(left.previous, merge.left);
    consider(merge.left, left.next);
  }
}

Status PairModel::Append(std::string_view word, std::vector<TokenId>* ids) const {
  if (word.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    return InvalidArgument("Encode", "a word of ", word.size(),
                           " bytes; expected at most 2^31 - 1");
  if (ignore_merges_) {
    if (const TokenId id = Find(word); id != kNoToken) {
      ids->push_back(id);
      return {};
    }
  }
  std::vector<TokenId> characters;
  AppendCharacters(word, &characters);
  std::vector<Symbol> symbols;
  symbols.reserve(characters.size());
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    symbols.push_back(
        {characters[i], index - 1, i + 1 == characters.size() ? kNone : index + 1, false});
  }
  JoinAll(&symbols);
  for (const Symbol& symbol : symbols)
    if (!symbol.joined) ids->push_back(symbol.id);
  return {};
}

}  // namespace

Result<std::unique_ptr<const WordModel>> MakePairModel(const JsonPart& json) {
  return PairModel::Create(json);
}

}  // namespace manyhead
