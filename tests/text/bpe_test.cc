#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "runtime/text/pretokenizer_table.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::BpeVocab;
using ::manyhead::testing::LoadFrom;
using ::manyhead::testing::MustEncode;
using ::manyhead::testing::MustLoad;
using ::manyhead::testing::VocabFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Bpe, LowerRankMergesFirstThenTheLeftmost) {
  VocabFile vocab = BpeVocab("gpt-2");
  vocab.Merge("b", "c");
  vocab.Merge("a", "b");
  vocab.Merge("a", "a");
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  const TokenId bc = 256;
  const TokenId ab = 257;
  const TokenId aa = 258;
  EXPECT_THAT(MustEncode(tokenizer, "abc"), ElementsAre('a', bc));
  EXPECT_THAT(MustEncode(tokenizer, "aab"), ElementsAre('a', ab));
  EXPECT_THAT(MustEncode(tokenizer, "aaa"), ElementsAre(aa, 'a'));
}

TEST(Bpe, OfTwoRulesForOnePairTheFirstCounts) {
  VocabFile vocab = BpeVocab("gpt-2");
  vocab.Merge("a", "b");
  vocab.Merge("b", "c");
  vocab.Merge("a", "b");  // were it the last that counts, b and c would be joined first
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "abc"), ElementsAre(256, 'c'));
}

TEST(Bpe, MergesStayInsideWords) {
  VocabFile vocab = BpeVocab("gpt-2");
  vocab.Merge("a", "\xC4\xA0");  // "a" and a space, as it is spelled
  vocab.Merge("\xC4\xA0", "a");
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(tokenizer, "a a"), ElementsAre('a', 257));
  EXPECT_FALSE(tokenizer.adds_dummy_prefix());
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{257}), " a");
}

TEST(Bpe, WholeWordsWithoutMergesWhereTheModelHasThem) {
  VocabFile vocab = BpeVocab("llama-bpe");
  vocab.Merge("a", "b");
  const TokenId abc = vocab.Add("abc");
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "abc abcd"),
              ElementsAre(abc, ' ', 256, 'c', 'd'));
  vocab.pre = "qwen2";
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "abc"), ElementsAre(256, 'c'));
}

TEST(Bpe, EmptyText) {
  EXPECT_THAT(MustEncode(MustLoad(BpeVocab("gpt-2").Writer()), ""), IsEmpty());
}

TEST(Bpe, AnyBytesComeBack) {
  VocabFile vocab = BpeVocab("qwen2");
  vocab.Merge(vocab.tokens[0xE2], vocab.tokens[0x82]);
  vocab.Merge("a", "b");
  std::mt19937 random(3);
  for (const char* pre :
       {"gpt-2", "qwen2", "llama-bpe", "deepseek-llm", "deepseek-coder", "default", "falcon",
        "starcoder", "qwen35", "tekken", "gpt-4o", "deepseek-v3"}) {
    vocab.pre = pre;
    const Tokenizer tokenizer = MustLoad(vocab.Writer());
    for (int round = 0; round < 300; ++round) {
      std::string text(random() % 40, '\0');
      // Half of the bytes from a few that begin, continue and break characters.
      for (char& c : text) {
        c = random() % 2 == 0 ? static_cast<char>(random() % 256)
                              : "\xE2\x82\xAC\xF0\x9F \n\r'sab1\xCC\x81"[random() % 15];
      }
      const std::vector<TokenId> ids = MustEncode(tokenizer, text);
      const std::string back = tokenizer.Decode(ids);
      // Text that NFC composes decodes to its composed form, and remains so.
      if (FindPreTokenizer(pre)->nfc && text.find('\xCC') != std::string::npos) {
        EXPECT_EQ(MustEncode(tokenizer, back), ids) << pre;
      } else {
        EXPECT_EQ(back, text) << pre;
      }
    }
    const std::string nul("a\0b\0", 4);
    EXPECT_EQ(tokenizer.Decode(MustEncode(tokenizer, nul)), nul);
  }
}

TEST(Bpe, ByteWithoutATokenIsAnError) {
  VocabFile vocab = BpeVocab("gpt-2");
  vocab.tokens[0x0B] = "vertical tab";
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  const Result<std::vector<TokenId>> ids = tokenizer.Encode("a\vb");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.status().message(), HasSubstr("byte = 11 has no token"));
}

// A vocabulary of the DeepSeek family has the letter U+00FF, which also spells the byte FF, as a
// user-defined token: the byte FF would have come back as C3 BF.
TEST(Bpe, ATokenThatOnlyLooksLikeTheByteIsNotTaken) {
  VocabFile vocab = BpeVocab("gpt-2");
  for (const std::size_t byte : {0xFFU, 0xC0U, 0xC1U, 0xF5U, 0xFEU})
    vocab.types[byte] = testing::kUserDefined;
  vocab.types['#'] = testing::kUserDefined;  // spells itself
  vocab.types['%'] = testing::kControl;
  vocab.types['&'] = testing::kUnused;
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  for (const char byte : {'\xFF', '\xC0', '\xC1', '\xF5', '\xFE', '%', '&'}) {
    const Result<std::vector<TokenId>> ids = tokenizer.Encode(std::string(1, byte));
    ASSERT_FALSE(ids.ok()) << static_cast<int>(byte);
    EXPECT_THAT(ids.status().message(), HasSubstr(" has no token"));
  }
  EXPECT_THAT(MustEncode(tokenizer, "#"), ElementsAre('#'));
  EXPECT_THAT(MustEncode(tokenizer, "\u00FF"), ElementsAre(0xFF));  // the letter itself
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{0xFF}), "\u00FF");
}

TEST(Bpe, MergesAndWholeWordsLeadToTextOnly) {
  for (const bool whole_words : {false, true}) {
    VocabFile vocab = BpeVocab(whole_words ? "llama-bpe" : "gpt-2");
    vocab.Merge("a", "b");
    const TokenId abc = vocab.Add("abc");
    if (!whole_words) vocab.Merge("ab", "c");
    vocab.Merge("x", "y");
    vocab.Merge("xy", "z");
    const auto xyz = static_cast<TokenId>(vocab.tokens.size() - 1), xy = xyz - 1;
    EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "abc xyz"), ElementsAre(abc, ' ', xyz));
    vocab.types[abc] = testing::kControl;
    vocab.types[xy] = testing::kUnused;
    const Tokenizer tokenizer = MustLoad(vocab.Writer());
    EXPECT_THAT(MustEncode(tokenizer, "abc"), ElementsAre(256, 'c'));
    EXPECT_THAT(MustEncode(tokenizer, "abc", {.parse_special = true}), ElementsAre(abc));
    if (whole_words) {
      EXPECT_THAT(MustEncode(tokenizer, "xyz"), ElementsAre(xyz));
    } else {
      EXPECT_THAT(MustEncode(tokenizer, "xyz"), ElementsAre('x', 'y', 'z'));
    }
  }
}

// Joining by scanning for the best pair would take 10^12 steps for each text. What the run is
// followed by may make an expression go back over all of it, but only once.
TEST(Bpe, OneMegabyteOfOneCharacter) {
  for (const char* pre : {"gpt-2", "qwen2", "llama-bpe", "deepseek-llm", "gpt-4o"}) {
    VocabFile vocab = BpeVocab(pre);
    for (const char* letter : {"a", "1", "\xC4\xA0"}) {
      const std::string c = letter;
      vocab.Merge(c, c);
      vocab.Merge(c + c, c + c);
    }
    const Tokenizer tokenizer = MustLoad(vocab.Writer());
    for (const char c : {'a', '1', ' ', '\x01'}) {
      const std::string text = std::string(1 << 20, c) + '\x02';
      EXPECT_EQ(tokenizer.Decode(MustEncode(tokenizer, text)), text) << pre << " of " << c;
    }
  }
}

TEST(Bpe, SpacesEscapedInAVocabularyOfCharacters) {
  VocabFile vocab;
  vocab.model = "gemma4";
  for (int byte = 0; byte < 256; ++byte) vocab.Add(testing::ByteTokenText(byte), testing::kByte);
  const std::string space = "\xE2\x96\x81";
  for (const std::string& c : {space, std::string("a"), std::string("b"), std::string("\n")}) {
    vocab.Add(c);
  }
  vocab.Merge("a", space);
  vocab.Merge("a" + space, "b");
  const TokenId a_b = static_cast<TokenId>(vocab.tokens.size() - 1);
  const TokenId lines = vocab.Add("\n\n\n");  // no merges lead to it
  const TokenId bos = vocab.Add("<bos>", testing::kControl);
  const Tokenizer tokenizer = MustLoad(vocab.Writer().Add("tokenizer.ggml.bos_token_id", bos));
  const std::string text = "a b\n\n\na\xC3\xA9";
  const std::vector<TokenId> ids = MustEncode(tokenizer, text);
  EXPECT_THAT(ids, ElementsAre(bos, a_b, lines, 257, 0xC3, 0xA9));
  EXPECT_EQ(tokenizer.Decode(ids), text);
  EXPECT_THAT(MustEncode(tokenizer, "\n\n", {.add_special = false}), ElementsAre(259, 259));
}

TEST(Bpe, MergesThatAreWrong) {
  const auto message = [](const std::string& merge) {
    VocabFile vocab = BpeVocab("gpt-2");
    vocab.merges.push_back(merge);
    const Result<Tokenizer> tokenizer = LoadFrom(vocab.Writer());
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.status().message();
  };
  EXPECT_THAT(message("a"), HasSubstr("merges[0] = 'a'; expected two parts"));
  EXPECT_THAT(message("a "), HasSubstr("expected two parts"));
  EXPECT_THAT(message(""), HasSubstr("expected two parts"));
  EXPECT_THAT(message("a b"), HasSubstr("merges[0] = 'a b': 'ab' is not a token"));
  EXPECT_THAT(message("xyz b"), HasSubstr("'xyz' is not a token"));
  EXPECT_THAT(message("a xyz"), HasSubstr("'xyz' is not a token"));

  VocabFile vocab = BpeVocab("gpt-2");
  testing::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.tokens", vocab.tokens);
  const Result<Tokenizer> tokenizer = LoadFrom(writer);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("tokenizer.ggml.merges is missing"));
}

}  // namespace
}  // namespace manyhead
