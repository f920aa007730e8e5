#include "runtime/text/bpe_model.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "runtime/platform/printable.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::int32_t kNone = -1;

std::string MergeName(std::string_view merge, std::int32_t rank) {
  return "LoadTokenizer: " + std::string(kMergesKey) + "[" + std::to_string(rank) + "] = '" +
         Printable(merge) + "'";
}

}  // namespace

struct BpeModel::Symbol {
  TokenId id;  ///< kNoToken for a character that is no token; it merges with nothing
  std::int32_t previous;
  std::int32_t next;
  bool joined;  ///< joined to its left neighbour
  std::string_view text;
};

struct BpeModel::Merge {
  std::int32_t rank;
  std::int32_t left;
  std::int32_t right;
  TokenId left_id;  ///< ids when the pair was found; a pair whose ids have changed is stale
  TokenId right_id;
  TokenId result;

  /// Orders the heap: a comes after b.
  friend bool operator<(const Merge& a, const Merge& b) {
    return a.rank > b.rank || (a.rank == b.rank && a.left > b.left);
  }
};

/// Buffers that are reused from word to word.
struct BpeModel::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Merge> heap;
};

BpeModel::BpeModel(const Vocabulary& vocabulary, PreTokenizer pre_tokenizer,
                   const BpeOptions& options, std::size_t num_merges)
    : vocabulary_(&vocabulary),
      pre_tokenizer_(std::move(pre_tokenizer)),
      options_(options),
      merges_(num_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<std::uint8_t>(byte);
    byte_ids_[value] = options.form == TextForm::kByteLevel
                           ? vocabulary.FindText(ByteLevelChar(value))
                           : vocabulary.byte_token(value);
  }
}

Result<std::unique_ptr<const BpeModel>> BpeModel::Create(const Metadata& metadata,
                                                         const Vocabulary& vocabulary,
                                                         PreTokenizer pre_tokenizer,
                                                         const BpeOptions& options) {
  Result<std::optional<std::vector<std::string_view>>> merges = metadata.GetStrings(kMergesKey);
  if (!merges.ok()) return merges.status();
  if (!merges->has_value()) {
    return Status(StatusCode::kIoError,
                  "LoadTokenizer: " + std::string(kMergesKey) + " is missing");
  }
  const std::vector<std::string_view>& lines = **merges;
  if (lines.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return Status(StatusCode::kIoError, "LoadTokenizer: " + std::string(kMergesKey) + " has " +
                                            std::to_string(lines.size()) +
                                            " entries; expected at most 2147483647");
  }
  std::unique_ptr<BpeModel> model(
      new BpeModel(vocabulary, std::move(pre_tokenizer), options, lines.size()));
  std::string joined;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    Status status = model->ReadMerge(lines[i], static_cast<std::int32_t>(i), &joined);
    if (!status.ok()) return status;
  }
  return std::unique_ptr<const BpeModel>(std::move(model));
}

/// Reads one merge; `joined` is a buffer that is reused from merge to merge.
Status BpeModel::ReadMerge(std::string_view merge, std::int32_t rank, std::string* joined) {
  // The search starts at the second byte, since a part may itself be a space.
  const std::size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == merge.size()) {
    return {StatusCode::kIoError, MergeName(merge, rank) + "; expected two parts"};
  }
  const std::string_view left = merge.substr(0, space);
  const std::string_view right = merge.substr(space + 1);
  joined->assign(left).append(right);
  for (const std::string_view part : {left, right, std::string_view(*joined)})
    if (vocabulary_->Find(part) == kNoToken)
      return {StatusCode::kIoError,
              MergeName(merge, rank) + ": '" + Printable(part) + "' is not a token"};
  const MergeRule rule{rank, vocabulary_->FindText(*joined)};
  const TokenId left_id = vocabulary_->FindText(left), right_id = vocabulary_->FindText(right);
  // A merge with a token that stands for other text never occurs.
  if (left_id != kNoToken && right_id != kNoToken && rule.result != kNoToken)
    merges_.Insert(left_id, right_id, rule);
  return {};
}

Status BpeModel::Append(std::string_view text, bool /*after_special*/,
                        std::vector<TokenId>* ids) const {
  std::string escaped;
  if (options_.form == TextForm::kSpaceEscaped) {
    escaped = EscapeSpaces(text, /*prefix=*/false);
    text = escaped;
  }
  // The links between symbols have 32 bits.
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return {StatusCode::kInvalidArgument, "Encode: text of " + std::to_string(text.size()) +
                                              " bytes; expected at most 2147483647"};
  }
  std::string composed;
  if (options_.nfc) text = ToNfc(text, &composed);
  Result<std::vector<std::string_view>> words = pre_tokenizer_.Split(text);
  if (!words.ok()) return words.status();
  Scratch scratch;
  for (std::string_view word : *words) {
    Status status = AppendWord(word, &scratch, ids);
    if (!status.ok()) return status;
  }
  return {};
}

/// Returns the token that `word` is without any merging, or kNoToken.
TokenId BpeModel::WholeWord(std::string_view word) const {
  if (options_.form == TextForm::kSpaceEscaped) {
    // Runs of line ends are tokens that no merge produces.
    const bool line_ends = word.find_first_not_of('\n') == std::string_view::npos;
    return line_ends || options_.ignore_merges ? vocabulary_->FindText(word) : kNoToken;
  }
  if (!options_.ignore_merges) return kNoToken;
  std::string spelled;
  spelled.reserve(2 * word.size());
  for (const char c : word) spelled += ByteLevelChar(static_cast<std::uint8_t>(c));
  return vocabulary_->FindText(spelled);
}

void BpeModel::StartSymbols(std::string_view word, std::vector<Symbol>* symbols) const {
  symbols->clear();
  while (!word.empty()) {
    std::size_t size = 1;
    TokenId id = kNoToken;
    if (options_.form == TextForm::kByteLevel) {
      id = byte_ids_[static_cast<std::uint8_t>(word[0])];
    } else {
      size = std::max<std::size_t>(1, Utf8CharLength(word));
      id = vocabulary_->FindText(word.substr(0, size));
    }
    const auto index = static_cast<std::int32_t>(symbols->size());
    symbols->push_back({id, index - 1, index + 1, false, word.substr(0, size)});
    word.remove_prefix(size);
  }
  symbols->back().next = kNone;
}

void BpeModel::Consider(Scratch* scratch, std::int32_t left, std::int32_t right) const {
  if (left == kNone || right == kNone) return;
  const TokenId left_id = scratch->symbols[static_cast<std::size_t>(left)].id;
  const TokenId right_id = scratch->symbols[static_cast<std::size_t>(right)].id;
  const MergeRule* rule = merges_.Find(left_id, right_id);
  if (rule == nullptr) return;
  scratch->heap.push_back({rule->rank, left, right, left_id, right_id, rule->result});
  std::push_heap(scratch->heap.begin(), scratch->heap.end());
}

void BpeModel::RunMerges(Scratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  scratch->heap.clear();
  for (std::int32_t right = 1; right < static_cast<std::int32_t>(symbols.size()); ++right) {
    Consider(scratch, right - 1, right);
  }
  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end());
    const Merge merge = scratch->heap.back();
    scratch->heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(merge.left)];
    Symbol& right = symbols[static_cast<std::size_t>(merge.right)];
    if (left.joined || right.joined || left.id != merge.left_id || right.id != merge.right_id) {
      continue;
    }
    left.id = merge.result;
    left.next = right.next;
    right.joined = true;
    if (left.next != kNone) symbols[static_cast<std::size_t>(left.next)].previous = merge.left;
    Consider(scratch, left.previous, merge.left);
    Consider(scratch, merge.left, left.next);
  }
}

Status BpeModel::AppendWord(std::string_view word, Scratch* scratch,
                            std::vector<TokenId>* ids) const {
  if (const TokenId id = WholeWord(word); id != kNoToken) {
    ids->push_back(id);
    return {};
  }
  StartSymbols(word, &scratch->symbols);
  RunMerges(scratch);
  for (std::int32_t i = 0; i != kNone;) {
    const Symbol& symbol = scratch->symbols[static_cast<std::size_t>(i)];
    if (symbol.id != kNoToken) {
      ids->push_back(symbol.id);
    } else if (Status status = AppendBytes(symbol.text, ids); !status.ok()) {
      return status;
    }
    i = symbol.next;
  }
  return {};
}

Status BpeModel::AppendBytes(std::string_view text, std::vector<TokenId>* ids) const {
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte_ids_[byte] == kNoToken) {
      return {StatusCode::kInvalidArgument,
              "Encode: byte = " + std::to_string(byte) + " has no token"};
    }
    ids->push_back(byte_ids_[byte]);
  }
  return {};
}

}  // namespace manyhead
