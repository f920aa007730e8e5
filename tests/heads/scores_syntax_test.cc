// Tests how often the strongest arc is a dependency, against the definition over whole matrices.

#include "runtime/heads/classify/scores_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/heads/classes_testing.h"
#include "tests/support/model_files.h"

namespace manyhead {
namespace {

using Matrix = std::vector<std::vector<float>>;  // [query token][key token]

DependencySentence Sentence(const std::vector<std::string>& words,
                            const std::vector<std::pair<std::int64_t, std::string>>& arcs) {
  DependencySentence sentence;
  sentence.line = 17;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) sentence.text += ' ';
    const std::size_t begin = sentence.text.size();
    sentence.text += words[i];
    sentence.words.push_back({begin, sentence.text.size(), arcs[i].first, arcs[i].second});
  }
  return sentence;
}

DependencySentence BirdSentence() {
  return Sentence({"the", "small", "birds", "often", "eat", "ripe", "cherries"}, {{2, "det"},
                                                                                  {2, "amod"},
                                                                                  {4, "nsubj"},
                                                                                  {4, "advmod"},
                                                                                  {-1, "root"},
                                                                                  {6, "amod"},
                                                                                  {4, "obj"}});
}

/// A control token, then each word as tokens of two bytes with the space before it.
std::vector<TokenWords> TokensOf(const DependencySentence& sentence) {
  std::vector<TokenWords> tokens = {{0, 0}};
  for (std::size_t i = 0; i < sentence.words.size(); ++i) {
    const auto word = static_cast<std::int64_t>(i);
    const std::size_t bytes = sentence.words[i].end - sentence.words[i].begin;
    for (std::size_t part = 0; part < (bytes + 1) / 2; ++part) tokens.push_back({word, word + 1});
  }
  return tokens;
}

Matrix RandomMatrix(std::size_t tokens, std::uint32_t seed) {
  testing::Numbers numbers(seed);
  Matrix matrix(tokens);
  for (std::size_t i = 0; i < tokens; ++i)
    for (std::size_t j = 0; j <= i; ++j) matrix[i].push_back(static_cast<float>(numbers.Next()));
  return matrix;
}

/// The earlier word with most weight, from the whole matrix.
std::int64_t Strongest(const Matrix& matrix, const std::vector<TokenWords>& tokens,
                       std::int64_t word) {
  std::vector<double> sums(static_cast<std::size_t>(word), 0.0);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (word < tokens[i].first || word >= tokens[i].end) continue;
    for (std::size_t j = 0; j <= i; ++j)
      for (std::int64_t to = tokens[j].first; to < std::min(word, tokens[j].end); ++to)
        sums[static_cast<std::size_t>(to)] += static_cast<double>(matrix[i][j]);
  }
  return std::max_element(sums.begin(), sums.end()) - sums.begin();
}

struct Count {
  std::int64_t words = 0, hits = 0;
  std::map<std::int64_t, std::int64_t> offsets;
};

using Counts = std::map<std::pair<std::string, bool>, Count>;

void CountWords(const DependencySentence& sentence, const Matrix& matrix,
                const std::vector<TokenWords>& tokens, Counts& counts) {
  const auto words = static_cast<std::int64_t>(sentence.words.size());
  for (std::int64_t from = 0; from < words; ++from) {
    std::map<std::pair<std::string, bool>, std::vector<std::int64_t>> targets;
    for (std::int64_t other = 0; other < words; ++other) {
      const DependencyWord& word = sentence.words[static_cast<std::size_t>(other)];
      if (other == from && word.head >= 0 && word.head < from)
        targets[{word.relation, true}].push_back(word.head);
      if (other < from && word.head == from) targets[{word.relation, false}].push_back(other);
    }
    for (const auto& [name, right] : targets) {
      Count& count = counts[name];
      ++count.words;
      const std::int64_t strongest = Strongest(matrix, tokens, from);
      count.hits += std::count(right.begin(), right.end(), strongest);
      for (const std::int64_t to : right) ++count.offsets[from - to];
    }
  }
}

void Feed(SyntaxScorer& scorer, const std::vector<Matrix>& heads) {
  for (std::size_t i = 0; i < heads[0].size(); ++i)
    for (std::size_t h = 0; h < heads.size(); ++h)
      scorer.Add(
          {{1, static_cast<std::int64_t>(h)}, static_cast<std::int64_t>(i), heads[h][i], 0, 0});
}

void ExpectCounts(const std::vector<DependencyScore>& scores, const Counts& counts) {
  ASSERT_EQ(scores.size(), counts.size());
  for (const DependencyScore& score : scores) {
    const Count& count = counts.at({score.relation, score.to_head});
    const auto words = static_cast<double>(count.words);
    std::int64_t best = 0;
    for (const auto& [offset, hits] : count.offsets)
      if (offset <= 10) best = std::max(best, hits);
    EXPECT_EQ(score.count, count.words) << score.relation;
    EXPECT_DOUBLE_EQ(score.accuracy, static_cast<double>(count.hits) / words) << score.relation;
    EXPECT_DOUBLE_EQ(score.baseline, static_cast<double>(best) / words) << score.relation;
    EXPECT_EQ(count.offsets.count(score.offset) > 0 ? count.offsets.at(score.offset) : 0, best);
  }
}

TEST(SyntaxScorer, CountsAreThoseOfTheWholeMatrices) {
  SyntaxScorer scorer({3, 2});
  Counts counts[2];
  for (std::uint32_t round = 0; round < 40; ++round) {
    DependencySentence sentence = BirdSentence();
    if (round % 3 == 1) std::reverse(sentence.words.begin(), sentence.words.end());
    if (round % 3 == 1)  // heads of the mirrored sentence
      for (DependencyWord& word : sentence.words)
        if (word.head >= 0) word.head = 6 - word.head;
    const std::vector<TokenWords> tokens = TokensOf(sentence);
    const std::vector<Matrix> heads = {RandomMatrix(tokens.size(), 2 * round),
                                       RandomMatrix(tokens.size(), 2 * round + 1)};
    scorer.Begin(sentence, tokens);
    Feed(scorer, heads);
    for (std::size_t h = 0; h < 2; ++h) CountWords(sentence, heads[h], tokens, counts[h]);
  }
  const auto scores = scorer.Scores();
  ASSERT_EQ(scores.size(), 5U);
  ExpectCounts(scores[3], counts[0]);
  ExpectCounts(scores[4], counts[1]);
  for (const DependencyScore& score : scores[0]) EXPECT_EQ(score.accuracy, 0);
}

TEST(SyntaxScorer, WordsThatShareTokensAreToldApart) {
  DependencySentence sentence = BirdSentence();
  // "small birds" as one multiword token of three tokens, "eat ripe" in one token.
  const std::vector<TokenWords> tokens = {{0, 0}, {0, 1}, {1, 3}, {1, 3}, {1, 3},
                                          {3, 4}, {4, 6}, {6, 7}, {6, 7}};
  SyntaxScorer scorer({1, 1});
  Counts counts;
  for (std::uint32_t round = 0; round < 20; ++round) {
    const Matrix matrix = RandomMatrix(tokens.size(), 100 + round);
    scorer.Begin(sentence, tokens);
    Feed(scorer, {matrix});
    CountWords(sentence, matrix, tokens, counts);
  }
  ExpectCounts(scorer.Scores()[1], counts);
}

TEST(SyntaxScorer, AHeadThatFollowsAVerbsSubjectIsFound) {
  const DependencySentence sentence = BirdSentence();
  const std::vector<TokenWords> tokens = TokensOf(sentence);
  SyntaxScorer scorer({1});
  for (int round = 0; round < 12; ++round) {
    Matrix matrix = RandomMatrix(tokens.size(), 3);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      for (std::size_t j = 0; j <= i; ++j)
        if (tokens[i].first == 4 && tokens[j].first == 2) matrix[i][j] += 9;
    scorer.Begin(sentence, tokens);
    for (std::size_t i = 0; i < matrix.size(); ++i)
      scorer.Add({{0, 0}, static_cast<std::int64_t>(i), matrix[i], 0, 0});
  }
  HeadScores scores;
  scores.dependencies = scorer.Scores()[0];
  for (DependencyScore& score : scores.dependencies)
    if (score.relation == "nsubj") {
      EXPECT_EQ(score.accuracy, 1);
      EXPECT_EQ(score.offset, 2);
      EXPECT_EQ(score.baseline, 1);  // in one sentence the distance alone predicts everything
      score.baseline = 0.5;
    }
  EXPECT_EQ(ClassOf(scores), HeadClass::kSyntactic);
}

TEST(AlignWords, TokensGetTheWordsTheirBytesBelongTo) {
  const Result<Model> model = Model::Load(FindModel("bundled"));
  ASSERT_TRUE(model.ok());
  const Tokenizer& tokenizer = model->tokenizer();
  const DependencySentence sentence = Sentence({"ab", "\xC3\xA9"}, {{-1, "root"}, {0, "obj"}});
  const auto ids = tokenizer.Encode(sentence.text);
  ASSERT_TRUE(ids.ok());
  const auto tokens = AlignWords(tokenizer, *ids, sentence);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  const std::size_t lead = ids->size() - sentence.text.size();  // every byte is a token
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {
      {0, 1}, {0, 1}, {1, 1}, {1, 2}, {1, 2}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*tokens)[lead + i].first, expected[i].first) << i;
    EXPECT_EQ((*tokens)[lead + i].end, expected[i].second) << i;
  }
  const std::vector<TokenId> other(ids->begin(), ids->end() - 1);
  const auto wrong = AlignWords(tokenizer, other, sentence);
  EXPECT_EQ(wrong.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(wrong.status().message(), ::testing::HasSubstr("line 17"));
}

}  // namespace
}  // namespace manyhead
