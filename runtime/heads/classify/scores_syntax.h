#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/head_classes.h"
#include "manyhead/heads.h"
#include "manyhead/tokenizer.h"
#include "runtime/heads/classify/conllu.h"

namespace manyhead {

/// The words [first, end) that a token is a part of; none for spaces and control tokens.
struct TokenWords {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// Returns the words of each token of `ids`, which encode the sentence's text.
/// Errors   kUnsupported when the joined texts of the tokens are not the sentence's.
Result<std::vector<TokenWords>> AlignWords(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                           const DependencySentence& sentence);

/// Counts for every head how often its strongest arc is a dependency.
///
/// A word's weight for an earlier word is the mean over its own tokens of the sum over that word's
/// tokens (arXiv:1906.04341, 4.1); the strongest arc goes to the earlier word with the largest
/// weight, the first of equal ones.
class SyntaxScorer {
 public:
  static constexpr std::size_t kOffsets = 10;  ///< distances in words that a baseline may have

  explicit SyntaxScorer(const std::vector<std::int64_t>& heads);

  /// Starts a sentence: the following rows belong to `sentence`, whose tokens are `tokens`; every
  /// position once, ascending for each head.
  void Begin(const DependencySentence& sentence, const std::vector<TokenWords>& tokens);
  void Add(const CapturedRow& row) noexcept;

  /// Returns the scores by head, layer by layer: every relation and direction that occurred, by
  /// name.
  std::vector<std::vector<DependencyScore>> Scores() const;

 private:
  struct Relation {
    std::int64_t count = 0;
    std::array<std::int64_t, kOffsets> offsets{};  // number of times that distance i + 1 is right
    std::vector<std::int64_t> hits;                // [head]
  };
  /// The earlier words in one relation to a word.
  struct Targets {
    Relation* relation = nullptr;
    std::vector<std::int64_t> words;
  };

  void AddArc(const std::string& name, bool to_head, std::int64_t from, std::int64_t to);
  float* SumsOf(std::size_t head, std::int64_t word) noexcept;
  void FinishWord(std::size_t head, std::int64_t word) noexcept;

  std::vector<std::size_t> first_;  // [layer] index of its first head
  std::size_t heads_ = 0;
  std::map<std::pair<std::string, bool>, Relation> relations_;

  // The following describe the current sentence.
  std::vector<TokenWords> tokens_;
  std::int64_t words_ = 0;
  std::vector<std::int64_t> last_token_;  // [word]
  std::int64_t open_ = 1;                 // number of words that tokens may be parts of at a time
  std::vector<std::vector<Targets>> targets_;  // [word]
  std::vector<float> sums_;                    // [head][open][words] weight of each word
  std::vector<float> row_;                     // [words] weights of one row
};

}  // namespace manyhead
