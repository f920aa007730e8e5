#include "runtime/text/spm_model.h"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <string>

#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

constexpr std::int64_t kNone = -1;

}  // namespace

/// A part of the text that is one token so far; empty once it has been joined to its left
/// neighbour.
struct SpmModel::Symbol {
  std::size_t begin;
  std::size_t size;
  std::int64_t previous;
  std::int64_t next;
};

struct SpmModel::Merge {
  float score;
  std::int64_t left;
  std::int64_t right;
  /// Size of both together when the pair was found; a pair with another size is stale.
  std::size_t size;

  /// Orders the heap: a comes after b.
  friend bool operator<(const Merge& a, const Merge& b) {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
  }
};

/// Merges one text in O(n log n) of its characters.
class SpmModel::Merger {
 public:
  Merger(const Vocabulary& vocabulary, std::string_view text)
      : vocabulary_(vocabulary), text_(text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::max<std::size_t>(1, Utf8CharLength(text.substr(at)));
      const auto index = static_cast<std::int64_t>(symbols_.size());
      symbols_.push_back({at, size, index - 1, at + size == text.size() ? kNone : index + 1});
      at += size;
    }
    for (std::int64_t right = 1; right < static_cast<std::int64_t>(symbols_.size()); ++right) {
      Consider(right - 1, right);
    }
  }

  void Run() {
    while (!merges_.empty()) {
      const Merge merge = merges_.top();
      merges_.pop();
      Symbol& left = At(merge.left);
      Symbol& right = At(merge.right);
      if (left.size == 0 || right.size == 0 || left.size + right.size != merge.size) continue;
      left.size = merge.size;
      left.next = right.next;
      right.size = 0;
      if (left.next != kNone) At(left.next).previous = merge.left;
      Consider(left.previous, merge.left);
      Consider(merge.left, left.next);
    }
  }

  template <class Visit>
  Status ForEach(Visit visit) const {
    for (std::int64_t i = symbols_.empty() ? kNone : 0; i != kNone;) {
      const Symbol& symbol = symbols_[static_cast<std::size_t>(i)];
      Status status = visit(text_.substr(symbol.begin, symbol.size));
      if (!status.ok()) return status;
      i = symbol.next;
    }
    return {};
  }

 private:
  Symbol& At(std::int64_t index) { return symbols_[static_cast<std::size_t>(index)]; }

  void Consider(std::int64_t left, std::int64_t right) {
    if (left == kNone || right == kNone) return;
    const std::size_t size = At(left).size + At(right).size;
    const TokenId id = vocabulary_.FindText(text_.substr(At(left).begin, size));
    if (id != kNoToken) merges_.push({vocabulary_.score(id), left, right, size});
  }

  const Vocabulary& vocabulary_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Merge> merges_;
};

Status SpmModel::Append(std::string_view text, bool after_special,
                        std::vector<TokenId>* ids) const {
  if (text.empty()) return {};
  const std::string escaped = EscapeSpaces(text, /*prefix=*/dummy_prefix_ && after_special);
  Merger merger(*vocabulary_, escaped);
  merger.Run();
  return merger.ForEach([&](std::string_view symbol) -> Status {
    const TokenId id = vocabulary_->FindText(symbol);
    if (id == kNoToken) return AppendBytes(symbol, ids);
    ids->push_back(id);
    return {};
  });
}

Status SpmModel::AppendBytes(std::string_view text, std::vector<TokenId>* ids) const {
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    const TokenId id =
        vocabulary_->byte_token(byte) != kNoToken ? vocabulary_->byte_token(byte) : unknown_;
    if (id == kNoToken) {
      return {StatusCode::kInvalidArgument, "Encode: byte = " + std::to_string(byte) +
                                                " has no token, and there is no unknown token"};
    }
    ids->push_back(id);
  }
  return {};
}

}  // namespace manyhead
