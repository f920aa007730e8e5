#include "runtime/text/word_model.h"

#include <utility>

#include "runtime/platform/printable.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {
namespace {

using Made = Result<std::unique_ptr<const WordModel>>;

/// WordPiece: the longest token that a word begins with, then the longest that the rest begins
/// with among those that continue words. A word that does not come out whole is unknown.
class WordPieceModel final : public WordModel {
 public:
  static Made Create(const JsonPart& json) {
    Status status;
    auto model = std::make_unique<WordPieceModel>();
    const std::string unknown = json.String("unk_token", "[UNK]", &status);
    model->prefix_ = json.String("continuing_subword_prefix", "##", &status);
    model->max_chars_ = json.Int("max_input_chars_per_word", 1, INT32_MAX, 100, &status);
    if (status.ok()) status = ReadTokenIds(json["vocab"], &model->ids_);
    if (!status.ok()) return status;
    model->unknown_ = model->Find(unknown);
    if (model->unknown_ == kNoToken) return json["unk_token"].Wrong("a token of the vocabulary");
    return Made(std::move(model));
  }

  Status Append(std::string_view word, std::vector<TokenId>* ids) const override {
    std::int64_t chars = 0;
    for (std::size_t at = 0, size = 0; at < word.size(); at += size, ++chars)
      FirstChar(word.substr(at), &size);
    const std::size_t before = ids->size();
    std::string candidate;
    for (std::size_t begin = 0; begin < word.size() && chars <= max_chars_;) {
      candidate = begin == 0 ? std::string() : prefix_;
      candidate += word.substr(begin);
      std::size_t end = word.size();
      TokenId id = Find(candidate);
      while (id == kNoToken && end > begin + 1) {
        do {
          candidate.pop_back();
          --end;
        } while (end > begin && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80);
        if (end > begin) id = Find(candidate);
      }
      if (id == kNoToken) {
        ids->resize(before);
        break;
      }
      ids->push_back(id);
      begin = end;
    }
    if (ids->size() == before) ids->push_back(unknown_);
    return {};
  }

 private:
  std::string prefix_;
  std::int64_t max_chars_ = 100;
};

}  // namespace

std::int64_t WordModel::memory_bytes() const noexcept {
  constexpr std::size_t kNodeBytes =
      sizeof(void*) + sizeof(TokenIds::value_type) + 2 * sizeof(std::size_t);
  return static_cast<std::int64_t>(ids_.size() * kNodeBytes + ids_.bucket_count() * sizeof(void*));
}

TokenId WordModel::Find(std::string_view text) const noexcept {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNoToken : found->second;
}

std::string ByteTokenText(std::uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

bool WordModel::AppendBytes(std::string_view text, std::vector<TokenId>* ids) const {
  const std::size_t before = ids->size();
  for (const char c : text) {
    const TokenId id = Find(ByteTokenText(static_cast<std::uint8_t>(c)));
    if (id == kNoToken) {
      ids->resize(before);
      return false;
    }
    ids->push_back(id);
  }
  return true;
}

Status ReadTokenIds(const JsonPart& json, TokenIds* ids) {
  if (!json.json().is_object() || json.json().empty())
    return json.Wrong("an object of tokens and their ids");
  ids->reserve(json.json().size());
  std::vector<bool> taken;
  for (const auto& item : json.json().items()) {
    const JsonPart::Json& value = item.value();
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxTokens))
      return IoError("tokenizer.json", json.path(), " has ", ShowJson(value), " for '",
                     Printable(item.key()), "'; expected an id below ", kMaxTokens);
    const auto id = value.get<std::size_t>();
    if (id >= taken.size()) taken.resize(id + 1);
    if (taken[id])
      return IoError("tokenizer.json", json.path(), " has two tokens of id ", id, ", one is '",
                     Printable(item.key()), "'");
    taken[id] = true;
    ids->emplace(item.key(), static_cast<TokenId>(id));
  }
  return {};
}

Result<std::unique_ptr<const WordModel>> MakeWordModel(const JsonPart& json) {
  Status status;
  std::string type = json.String("type", "", &status);
  if (!status.ok()) return status;
  // Older files leave the type out.
  if (type.empty())
    type = json.Has("merges")                     ? "BPE"
           : json.Has("max_input_chars_per_word") ? "WordPiece"
           : json.Has("unk_id")                   ? "Unigram"
                                                  : "";
  if (type == "BPE") return MakePairModel(json);
  if (type == "WordPiece") return WordPieceModel::Create(json);
  if (type == "Unigram") return MakeUnigramModel(json);
  return json.NotSupported("type", "BPE, WordPiece or Unigram");
}

}  // namespace manyhead
