#include "runtime/heads/classify/scores_syntax.h"

#include <algorithm>

namespace manyhead {

Result<std::vector<TokenWords>> AlignWords(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                           const DependencySentence& sentence) {
  std::string text;
  std::vector<std::size_t> ends;
  for (const TokenId id : ids) ends.push_back((text += tokenizer.Piece(id)).size());
  const std::size_t prefix = text == " " + sentence.text ? 1 : 0;
  if (text.compare(prefix, text.npos, sentence.text) != 0)
    return Status(StatusCode::kUnsupported, "CoNLL-U: line " + std::to_string(sentence.line) +
                                                ": the tokenizer gives another text back");
  std::vector<TokenWords> tokens;
  const auto words = static_cast<std::int64_t>(sentence.words.size());
  const auto word_at = [&](std::int64_t i) { return sentence.words[static_cast<std::size_t>(i)]; };
  std::size_t begin = 0;
  std::int64_t first = 0;
  for (const std::size_t end : ends) {
    // Words and tokens are both in the order of the text: a word that ends before a token is
    // finished.
    while (first < words && word_at(first).end + prefix <= begin) ++first;
    std::int64_t last = first;
    while (last < words && end > begin && word_at(last).begin + prefix < end) ++last;
    tokens.push_back({first, last});
    begin = end;
  }
  return tokens;
}

SyntaxScorer::SyntaxScorer(const std::vector<std::int64_t>& heads) {
  for (const std::int64_t count : heads) {
    first_.push_back(heads_);
    heads_ += static_cast<std::size_t>(count);
  }
}

void SyntaxScorer::Begin(const DependencySentence& sentence,
                         const std::vector<TokenWords>& tokens) {
  tokens_ = tokens;
  words_ = static_cast<std::int64_t>(sentence.words.size());
  last_token_.assign(sentence.words.size(), 0);
  open_ = 1;
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (std::int64_t word = tokens[t].first; word < tokens[t].end; ++word)
      last_token_[static_cast<std::size_t>(word)] = static_cast<std::int64_t>(t);
  // A word is open from its first token to its last: words that are open at the same time are
  // neighbours.
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::int64_t first = tokens[t].first;
    while (first > 0 &&
           last_token_[static_cast<std::size_t>(first - 1)] >= static_cast<std::int64_t>(t))
      --first;
    open_ = std::max(open_, tokens[t].end - first);
  }
  sums_.assign(heads_ * static_cast<std::size_t>(open_ * words_), 0);
  row_.assign(static_cast<std::size_t>(words_), 0);
  targets_.assign(sentence.words.size(), {});
  for (std::int64_t i = 0; i < words_; ++i) {
    const DependencyWord& word = sentence.words[static_cast<std::size_t>(i)];
    if (word.head < 0) continue;
    AddArc(word.relation, word.head < i, std::max(i, word.head), std::min(i, word.head));
  }
  for (const std::vector<Targets>& targets : targets_)
    for (const Targets& target : targets) {
      ++target.relation->count;
      const std::int64_t from = &targets - targets_.data();
      for (const std::int64_t to : target.words)
        if (from - to <= static_cast<std::int64_t>(kOffsets))
          ++target.relation->offsets[static_cast<std::size_t>(from - to - 1)];
    }
}

void SyntaxScorer::AddArc(const std::string& name, bool to_head, std::int64_t from,
                          std::int64_t to) {
  Relation& relation = relations_[{name, to_head}];
  relation.hits.resize(heads_, 0);
  std::vector<Targets>& targets = targets_[static_cast<std::size_t>(from)];
  for (Targets& known : targets)
    if (known.relation == &relation) {
      known.words.push_back(to);
      return;
    }
  targets.push_back({&relation, {to}});
}

float* SyntaxScorer::SumsOf(std::size_t head, std::int64_t word) noexcept {
  return sums_.data() + (static_cast<std::int64_t>(head) * open_ + word % open_) * words_;
}

void SyntaxScorer::Add(const CapturedRow& row) noexcept {
  const auto position = static_cast<std::size_t>(row.position);
  const TokenWords own = tokens_[position];
  if (own.first == own.end) return;
  const std::size_t head =
      first_[static_cast<std::size_t>(row.head.layer)] + static_cast<std::size_t>(row.head.head);
  std::fill(row_.begin(), row_.end(), 0.0F);
  for (std::size_t t = 0; t <= position; ++t)
    for (std::int64_t word = tokens_[t].first; word < tokens_[t].end; ++word)
      row_[static_cast<std::size_t>(word)] += row.weights[t];
  for (std::int64_t word = own.first; word < own.end; ++word) {
    float* sums = SumsOf(head, word);
    for (std::int64_t to = 0; to < word; ++to) sums[to] += row_[static_cast<std::size_t>(to)];
    if (last_token_[static_cast<std::size_t>(word)] == row.position) FinishWord(head, word);
  }
}

void SyntaxScorer::FinishWord(std::size_t head, std::int64_t word) noexcept {
  float* sums = SumsOf(head, word);
  const std::int64_t strongest = std::max_element(sums, sums + word) - sums;
  for (const Targets& target : targets_[static_cast<std::size_t>(word)])
    if (std::find(target.words.begin(), target.words.end(), strongest) != target.words.end())
      ++target.relation->hits[head];
  std::fill(sums, sums + words_, 0.0F);
}

std::vector<std::vector<DependencyScore>> SyntaxScorer::Scores() const {
  std::vector<std::vector<DependencyScore>> scores(heads_);
  for (const auto& [name, relation] : relations_) {
    const auto best = std::max_element(relation.offsets.begin(), relation.offsets.end());
    const auto count = static_cast<double>(relation.count);
    for (std::size_t head = 0; head < heads_; ++head)
      scores[head].push_back({name.first, name.second, relation.count,
                              static_cast<double>(relation.hits[head]) / count,
                              static_cast<double>(*best) / count,
                              best - relation.offsets.begin() + 1});
  }
  return scores;
}

}  // namespace manyhead
