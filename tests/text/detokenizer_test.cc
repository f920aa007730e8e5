#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::MustLoad;
using ::manyhead::testing::SpmVocab;
using ::manyhead::testing::VocabFile;

TokenId ByteId(int byte) { return 3 + byte; }

class DetokenizerTest : public ::testing::Test {
 protected:
  DetokenizerTest() : tokenizer_(Load()) {}

  Tokenizer Load() {
    VocabFile vocab = SpmVocab();
    hello_ = vocab.Add("\xE2\x96\x81Hello");
    a_ = vocab.Add("a");
    unused_ = vocab.Add("never", testing::kUnused);
    user_ = vocab.Add("<user>", testing::kUserDefined);
    return MustLoad(vocab.Writer());
  }

  TokenId hello_ = 0;
  TokenId a_ = 0;
  TokenId unused_ = 0;
  TokenId user_ = 0;
  Tokenizer tokenizer_;
};

// antonellof/ferrox#124: a character split over tokens must not become U+FFFD.
TEST_F(DetokenizerTest, CharacterComesOutWhenItIsWhole) {
  Detokenizer two(tokenizer_);
  EXPECT_EQ(two.Push(ByteId(0xC4)), "");
  EXPECT_EQ(two.Push(ByteId(0x8F)), "\xC4\x8F");
  EXPECT_EQ(two.Flush(), "");

  Detokenizer four(tokenizer_);
  EXPECT_EQ(four.Push(ByteId(0xF0)), "");
  EXPECT_EQ(four.Push(ByteId(0x9F)), "");
  EXPECT_EQ(four.Push(ByteId(0xA6)), "");
  EXPECT_EQ(four.Push(ByteId(0x99)), "\xF0\x9F\xA6\x99");
}

TEST_F(DetokenizerTest, PiecesOfSeveralBytesAroundACharacter) {
  // "a" E2 | 82 | AC "b" with a byte-level vocabulary, whose tokens may hold parts of characters.
  VocabFile vocab = testing::BpeVocab("gpt-2");
  vocab.Merge("a", vocab.tokens[0xE2]);
  const TokenId a_e2 = static_cast<TokenId>(vocab.tokens.size() - 1);
  vocab.Merge(vocab.tokens[0xAC], "b");
  const TokenId ac_b = static_cast<TokenId>(vocab.tokens.size() - 1);
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.Push(a_e2), "a");
  EXPECT_EQ(stream.Push(0x82), "");
  EXPECT_EQ(stream.Push(ac_b),
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{a_e2, 0x82, ac_b}),
            "a\xE2\x82\xAC"
            "b");
}

TEST_F(DetokenizerTest, UnfinishedCharacterComesOutRawAtTheEnd) {
  Detokenizer stream(tokenizer_);
  EXPECT_EQ(stream.Push(ByteId(0xE2)), "");
  EXPECT_EQ(stream.Push(ByteId(0x82)), "");
  EXPECT_EQ(stream.Flush(), "\xE2\x82");
  EXPECT_EQ(stream.Flush(), "");
}

TEST_F(DetokenizerTest, BytesThatCannotBecomeACharacterDoNotWait) {
  Detokenizer stream(tokenizer_);
  EXPECT_EQ(stream.Push(ByteId(0xFF)), "\xFF");
  EXPECT_EQ(stream.Push(ByteId(0xE2)), "");
  EXPECT_EQ(stream.Push(a_),
            "\xE2"
            "a");
}

TEST_F(DetokenizerTest, DummySpaceGoesOnlyAtTheStart) {
  EXPECT_EQ(tokenizer_.Decode(std::vector<TokenId>{hello_, hello_}), "Hello Hello");
  EXPECT_EQ(tokenizer_.Decode(std::vector<TokenId>{1, hello_}), "Hello");  // <s> gives no text
  EXPECT_EQ(tokenizer_.Decode(std::vector<TokenId>{1, hello_}, true), "<s> Hello");
  Detokenizer continued(tokenizer_, false, true);
  EXPECT_EQ(continued.Push(hello_), " Hello");
}

TEST_F(DetokenizerTest, TokensWithoutText) {
  EXPECT_EQ(tokenizer_.Piece(1), "");
  EXPECT_EQ(tokenizer_.Piece(1, true), "<s>");
  EXPECT_EQ(tokenizer_.Piece(0, true), "<unk>");
  EXPECT_EQ(tokenizer_.Piece(unused_, true), "");
  EXPECT_EQ(tokenizer_.Piece(user_), "<user>");
  EXPECT_EQ(tokenizer_.Piece(-1, true), "");
  EXPECT_EQ(tokenizer_.Piece(static_cast<TokenId>(tokenizer_.vocab_size()), true), "");
  EXPECT_TRUE(tokenizer_.is_control(1));
  EXPECT_FALSE(tokenizer_.is_control(a_));
  EXPECT_FALSE(tokenizer_.is_control(-1));
  EXPECT_FALSE(tokenizer_.is_control(static_cast<TokenId>(tokenizer_.vocab_size())));
}

TEST_F(DetokenizerTest, PiecesTogetherEqualDecodeForAnyTokens) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids(random() % 12);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % 270) - 2;
    const bool special = random() % 2 == 0;
    Detokenizer stream(tokenizer_, special);
    std::string pieces;
    for (const TokenId id : ids) pieces += stream.Push(id);
    pieces += stream.Flush();
    EXPECT_EQ(pieces, tokenizer_.Decode(ids, special));
    std::string raw;
    for (const TokenId id : ids) raw += tokenizer_.Piece(id, special);
    // All that Decode may leave out is one space.
    EXPECT_TRUE(pieces == raw || " " + pieces == raw) << raw;
  }
}

}  // namespace
}  // namespace manyhead
