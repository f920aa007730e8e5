#include "runtime/heads/classify/conllu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace manyhead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Word(const std::string& id, const std::string& form, const std::string& head,
                 const std::string& relation, const std::string& misc = "_") {
  return id + "\t" + form + "\t_\tX\t_\t_\t" + head + "\t" + relation + "\t_\t" + misc + "\n";
}

std::string Two() { return Word("1", "birds", "2", "nsubj") + Word("2", "sing", "0", "root"); }

std::string ErrorOf(const std::string& bytes) {
  const auto sentences = ParseConllu(bytes);
  EXPECT_FALSE(sentences.ok()) << bytes;
  EXPECT_EQ(sentences.status().code(), StatusCode::kInvalidArgument);
  return sentences.status().message();
}

TEST(ParseConllu, ReadsWordsTextAndRelations) {
  const auto sentences = ParseConllu(
      "# a comment\n# text = ignored\n" + Word("1", "Anna", "3", "nmod:poss", "X=1|SpaceAfter=No") +
      Word("2", "'s", "1", "case") + Word("3", "dog", "0", "root", "SpaceAfter=No") +
      Word("4", "!", "3", "punct") + "\n\n\n" + Two());
  ASSERT_TRUE(sentences.ok()) << sentences.status().message();
  ASSERT_EQ(sentences->size(), 2U);
  const DependencySentence& first = sentences->front();
  EXPECT_EQ(first.text, "Anna's dog!");
  EXPECT_EQ(first.line, 3);
  EXPECT_EQ(sentences->back().line, 10);
  EXPECT_EQ(sentences->back().text, "birds sing");
  std::vector<std::string> words;
  std::vector<std::int64_t> heads;
  for (const DependencyWord& word : first.words) {
    words.push_back(first.text.substr(word.begin, word.end - word.begin) + "/" + word.relation);
    heads.push_back(word.head);
  }
  EXPECT_THAT(words, ElementsAre("Anna/nmod", "'s/case", "dog/root", "!/punct"));
  EXPECT_THAT(heads, ElementsAre(2, 0, -1, 2));
}

TEST(ParseConllu, WordsOfAMultiwordTokenShareItsText) {
  const std::string range = "2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No\n";
  const auto sentences =
      ParseConllu(Word("1", "We", "4", "nsubj") + range +
                  Word("2", "do", "4", "aux", "SpaceAfter=No") + Word("3", "n't", "4", "advmod") +
                  "3.1\tx\t_\t_\t_\t_\t_\t_\t1:dep\t_\n" + Word("4", "!", "0", "root") + "\r\n");
  ASSERT_TRUE(sentences.ok()) << sentences.status().message();
  const DependencySentence& sentence = sentences->front();
  EXPECT_EQ(sentence.text, "We don't!");
  ASSERT_EQ(sentence.words.size(), 4U);
  EXPECT_EQ(sentence.words[1].begin, 3U);
  EXPECT_EQ(sentence.words[1].end, 8U);
  EXPECT_EQ(sentence.words[2].begin, 3U);
  EXPECT_EQ(sentence.words[3].begin, 8U);
}

TEST(ParseConllu, LineEndsMayBeThoseOfWindows) {
  std::string bytes = Two();
  for (std::size_t at = 0; (at = bytes.find('\n', at)) != bytes.npos; at += 2)
    bytes.insert(at, "\r");
  EXPECT_TRUE(ParseConllu(bytes + "\r\n" + bytes).ok());
}

TEST(ParseConllu, ErrorsNameTheLine) {
  const std::string good = "# first\n" + Two() + "\n";  // 4 lines
  const std::map<std::string, std::string> cases = {
      {"1\tone\t_\n", "line 5: columns = 3; expected 10"},
      {"1\ta\t_\tX\t_\t_\t0\troot\t_\t_\textra\n", "line 5: columns = 11; expected 10"},
      {"1\t\t_\tX\t_\t_\t0\troot\t_\t_\n", "line 5: column 2 is empty"},
      {Word("2", "a", "0", "root"), "line 5: id = '2'; expected 1"},
      {Word("1", "a", "0", "root") + Word("1", "b", "0", "root"), "line 6: id = '1'; expected 2"},
      {Word("1x", "a", "0", "root"), "line 5: id = '1x'; expected 1"},
      {Word("99999999999999999999", "a", "0", "root"), "expected 1"},
      {Word("1", "a", "-1", "root"), "line 5: head = '-1'; expected 0 or another word's id"},
      {Word("1", "a", "1", "root"), "line 5: head = '1'"},
      {Word("1", "a", "_", "root"), "line 5: head = '_'"},
      {Word("1", "a", "7", "dep"), "line 5: word 1 has head = 7; expected 0..1"},
      {Word("1", "a", "0", "_"), "line 5: relation = '_'"},
      {Word("1", "a", "0", "ro ot"), "line 5: relation = 'ro ot'"},
      {Word("1", "a", "0", "ro\x1b[1mt"), "line 5: relation = 'ro?[1mt'"},
      {Word("1", "a", "0", "root") + Word("2", "b", "0", "root"),
       "line 5: the sentence has 2 roots"},
      {Word("1", "a", "2", "x") + Word("2", "b", "1", "x"), "line 5: the sentence has 0 roots"},
      {Word("1", "a", "2", "x") + Word("2", "b", "1", "x") + Word("3", "c", "0", "root"),
       "line 5: the heads of word 1 form a cycle"},
      {Word("1", "a\xff", "0", "root"), "line 5: byte 4 is no UTF-8 text"},
      {std::string("1\ta") + '\0' + "\t_\tX\t_\t_\t0\troot\t_\t_\n",
       "line 5: byte 4 is no UTF-8 text"},
      {"2-3\tx\t_\t_\t_\t_\t_\t_\t_\t_\n", "line 5: id = '2-3'; expected a range"},
      {"1-0\tx\t_\t_\t_\t_\t_\t_\t_\t_\n", "line 5: id = '1-0'; expected a range"},
      {"1-9999\tx\t_\t_\t_\t_\t_\t_\t_\t_\n", "expected at most 400 words"},
      {"1-2\tx\t_\t_\t_\t_\t_\t_\t_\t_\n" + Word("1", "a", "0", "root"),
       "line 7: the sentence ends after word 1; expected 2"},
      {"5.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n", "line 5: id = '5.1'; expected an empty node"},
      {"0.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n", "line 5: the sentence has no word"},
      {Word("1", std::string(2000, 'a'), "0", "root"), "form has 2000 bytes; expected 1..1024"},
      {Word("1", "a", "0", std::string(100, 'a')), "relation = 'aaaa"},
      {Word("1", "a", "0", "root") + "# late\n", "line 6: columns = 1; expected 10"},
      {" \n", "line 5: columns = 1; expected 10"},
  };
  for (const auto& [bad, expected] : cases) EXPECT_THAT(ErrorOf(good + bad), HasSubstr(expected));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no sentence"));
  EXPECT_THAT(ErrorOf("# only a comment\n\n"), HasSubstr("no sentence"));
}

TEST(ParseConllu, SentencesHaveAtMost400Words) {
  std::string bytes = Word("1", "a", "0", "root");
  for (int i = 2; i <= 400; ++i)
    bytes += Word(std::to_string(i), "a", std::to_string(i - 1), "dep");
  EXPECT_TRUE(ParseConllu(bytes).ok());
  EXPECT_THAT(ErrorOf(bytes + Word("401", "a", "1", "dep")), HasSubstr("line 401: id = 401"));
}

TEST(ParseConllu, NoCutOrChangedByteOfAFileIsMoreThanAnError) {
  const std::string bytes = "# x\n" + Two() + "\n1-2\tab\t_\t_\t_\t_\t_\t_\t_\t_\n" + Two() + "\n";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    static_cast<void>(ParseConllu(bytes.substr(0, i)));
    for (const char c : {'\t', '\n', '-', '9', '\xff', '\0'}) {
      std::string changed = bytes;
      changed[i] = c;
      const auto sentences = ParseConllu(changed);
      if (!sentences.ok()) continue;
      for (const DependencySentence& sentence : *sentences)
        for (const DependencyWord& word : sentence.words) {
          ASSERT_LE(word.end, sentence.text.size());
          ASSERT_LT(word.head, static_cast<std::int64_t>(sentence.words.size()));
        }
    }
  }
}

TEST(ParseConllu, TheSampleOfTheProjectIsRead) {
  std::ifstream file(std::string(MANYHEAD_SOURCE_DIR) + "/tools/data/sample.conllu");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto sentences = ParseConllu(bytes);
  ASSERT_TRUE(sentences.ok()) << sentences.status().message();
  EXPECT_EQ(sentences->size(), 30U);
  std::map<std::string, int> relations;
  for (const DependencySentence& sentence : *sentences) {
    EXPECT_THAT(bytes, HasSubstr("# text = " + sentence.text + "\n"));
    for (const DependencyWord& word : sentence.words) ++relations[word.relation];
  }
  for (const char* common : {"det", "nsubj", "obj", "amod", "case", "obl", "nmod"})
    EXPECT_GE(relations[common], 10) << common;
}

}  // namespace
}  // namespace manyhead
