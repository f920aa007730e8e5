#include "runtime/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/pretokenizer_table.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(std::string_view name, std::string_view text) {
  const PreTokenizerSpec* spec = FindPreTokenizer(name);
  if (spec == nullptr) {
    ADD_FAILURE() << name;
    return {};
  }
  const Result<PreTokenizer> splitter = PreTokenizer::Create(spec->expressions);
  EXPECT_TRUE(splitter.ok()) << splitter.status().message();
  const Result<std::vector<std::string_view>> words = splitter->Split(text);
  EXPECT_TRUE(words.ok()) << words.status().message();
  return {words->begin(), words->end()};
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(Words("gpt-2", "I'll pay 1234$  now!\n"),
              ElementsAre("I", "'ll", " pay", " 1234", "$", " ", " now", "!", "\n"));
  EXPECT_THAT(Words("gpt-2", "I'LL"), ElementsAre("I", "'", "LL"));
  EXPECT_THAT(Words("gpt-2", "a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(Words("gpt-2", "a   "), ElementsAre("a", "   "));
}

TEST(PreTokenizer, NumbersByModel) {
  EXPECT_THAT(Words("llama-bpe", "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(Words("qwen2", "123"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(Words("starcoder", "a 12"), ElementsAre("a", " ", "1", "2"));
  EXPECT_THAT(Words("falcon", "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(Words("deepseek-v3", "1234"), ElementsAre("123", "4"));
  EXPECT_THAT(Words("deepseek-llm", "1234"), ElementsAre("1234"));
  EXPECT_THAT(Words("mpt", "1234"), ElementsAre("1234"));
}

TEST(PreTokenizer, LineEnds) {
  EXPECT_THAT(Words("llama-bpe", "a;\r\n\r\n  b"), ElementsAre("a", ";\r\n\r\n", " ", " b"));
  EXPECT_THAT(Words("llama-bpe", "a \n \n b"), ElementsAre("a", " \n \n", " b"));
  EXPECT_THAT(Words("deepseek-coder", "a\r\n"), ElementsAre("a", "\r", "\n"));
  EXPECT_THAT(Words("gemma4", "a b\n\nc"), ElementsAre("a b", "\n\n", "c"));
}

TEST(PreTokenizer, Contractions) {
  EXPECT_THAT(Words("llama-bpe", "WE'RE"), ElementsAre("WE", "'RE"));
  // U+017F folds to s, but no contraction is spelled with it.
  EXPECT_THAT(Words("qwen2", "a'\xC5\xBF"), ElementsAre("a", "'\xC5\xBF"));
}

TEST(PreTokenizer, CombiningMarks) {
  // "e" and U+0301: a mark is no letter, but some models keep it with its word.
  EXPECT_THAT(Words("qwen2", "e\xCC\x81x"), ElementsAre("e", "\xCC\x81x"));
  EXPECT_THAT(Words("qwen35", "e\xCC\x81x"), ElementsAre("e\xCC\x81x"));
}

TEST(PreTokenizer, WordsByCase) {
  EXPECT_THAT(Words("gpt-4o", "getHTTPName's"), ElementsAre("get", "HTTPName's"));
  EXPECT_THAT(Words("tekken", "isÉtat12"), ElementsAre("is", "État", "1", "2"));
}

TEST(PreTokenizer, SpacesAreThoseOfUnicode) {
  // U+180E is no white space, though PCRE2's \s has it; U+0085 and U+3000 are.
  EXPECT_THAT(Words("gpt-2", "\xE1\xA0\x8E!"), ElementsAre("\xE1\xA0\x8E!"));
  EXPECT_THAT(Words("gpt-2", "\xC2\x85\xE3\x80\x80!"),
              ElementsAre("\xC2\x85", "\xE3\x80\x80", "!"));
}

TEST(PreTokenizer, LettersOfUnicode15) {
  // U+11F04 is a letter since Unicode 15; a space would go before a symbol, not inside.
  EXPECT_THAT(Words("gpt-2", "a\xF0\x91\xBC\x84"), ElementsAre("a\xF0\x91\xBC\x84"));
}

TEST(PreTokenizer, InvalidBytesAreWordsOfTheirOwn) {
  EXPECT_THAT(Words("gpt-2", "ab\xFF\xE2 c\x80"), ElementsAre("ab", "\xFF\xE2", " c", "\x80"));
  EXPECT_THAT(Words("llama-bpe", "\xE2\x82"), ElementsAre("\xE2\x82"));
}

TEST(PreTokenizer, EveryNameLoadsAndKeepsEveryByte) {
  const std::string text =
      "The  quick\tbrown 狐 jumps!? 12345\r\n\r\n  don't DON'T x86_64 ½ ٣\xCC\x81"
      "é\n \n\xE3\x80\x80\xE3\x80\x80 \x01\x02 \xFF\xF0\x9F\xA6\x99 ーあ한글 ǅ end   ";
  for (std::string_view name : PreTokenizerNames()) {
    std::string joined;
    for (const std::string& word : Words(name, text)) {
      EXPECT_FALSE(word.empty()) << name;
      joined += word;
    }
    EXPECT_EQ(joined, text) << name;
  }
}

TEST(PreTokenizer, UnknownNamesAreErrorsThatNameThem) {
  EXPECT_EQ(FindPreTokenizer("no-such-model"), nullptr);
  EXPECT_EQ(FindPreTokenizer(""), nullptr);
  EXPECT_EQ(FindPreTokenizer("zzz"), nullptr);
  const Result<Tokenizer> tokenizer =
      testing::LoadFrom(testing::BpeVocab("no-such-model").Writer());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("tokenizer.ggml.pre = 'no-such-model'"));
}

TEST(PreTokenizer, FilesWithoutTheKeyUseTheDefault) {
  testing::VocabFile vocab = testing::BpeVocab("");
  vocab.pre.reset();
  const Tokenizer tokenizer = testing::MustLoad(vocab.Writer());
  EXPECT_EQ(tokenizer.pre_name(), "");
  EXPECT_THAT(testing::MustEncode(tokenizer, "a1"), ElementsAre('a', '1'));
}

}  // namespace
}  // namespace manyhead
