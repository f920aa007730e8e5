#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::GgufWriter;
using ::manyhead::testing::LoadFrom;
using ::manyhead::testing::SpmVocab;
using ::manyhead::testing::VocabFile;
using ::testing::HasSubstr;

/// The message of a file that must not load.
std::string ErrorOf(const GgufWriter& writer, StatusCode code = StatusCode::kIoError) {
  const Result<Tokenizer> tokenizer = LoadFrom(writer);
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), code);
  return tokenizer.status().message();
}

TEST(Vocabulary, ModelThatIsMissingOrUnknown) {
  EXPECT_THAT(ErrorOf(GgufWriter()), HasSubstr("tokenizer.ggml.model is missing"));
  for (const char* model : {"bert", "t5", "rwkv", "no_vocab"}) {
    EXPECT_THAT(ErrorOf(GgufWriter().Add("tokenizer.ggml.model", model), StatusCode::kUnsupported),
                HasSubstr("tokenizer.ggml.model = '" + std::string(model) + "' is not supported"));
  }
  ErrorOf(GgufWriter().Add("tokenizer.ggml.model", 7));
}

TEST(Vocabulary, NoTokens) {
  EXPECT_THAT(ErrorOf(GgufWriter().Add("tokenizer.ggml.model", "llama")),
              HasSubstr("tokenizer.ggml.tokens is missing"));
  VocabFile vocab;
  vocab.model = "llama";
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("tokenizer.ggml.tokens has 0 entries"));
  ErrorOf(GgufWriter()
              .Add("tokenizer.ggml.model", "llama")
              .Add("tokenizer.ggml.tokens", std::vector<std::int32_t>{1}));
}

TEST(Vocabulary, ArraysOfAnotherLength) {
  VocabFile vocab = SpmVocab();
  vocab.types.pop_back();
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("token_type has 258 entries; expected 259"));
  vocab = SpmVocab();
  vocab.scores.push_back(0);
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("scores has 260 entries; expected 259"));
  vocab.scores.clear();
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("scores has 0 entries; expected 259"));
  vocab = SpmVocab();
  vocab.types.clear();
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("token_type has 0 entries; expected 259"));
}

TEST(Vocabulary, ValuesOutOfRange) {
  VocabFile vocab = SpmVocab();
  vocab.types[5] = 7;
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("token_type[5] = 7; expected 0..6"));
  vocab.types[5] = -1;
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("token_type[5] = -1; expected 0..6"));
  vocab = SpmVocab();
  vocab.scores[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("scores[9] is not a number"));
}

TEST(Vocabulary, TheSameTextTwice) {
  VocabFile vocab = SpmVocab();
  vocab.Add("twin");
  vocab.Add("twin");
  EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("tokens 259 and 260 are both 'twin'"));
}

TEST(Vocabulary, EmptyTextsMatchNothing) {
  VocabFile vocab = SpmVocab();
  vocab.Add("");
  vocab.Add("", testing::kControl);
  vocab.Add("", testing::kUserDefined);
  const Tokenizer tokenizer = testing::MustLoad(vocab.Writer());
  for (const TokenId id : testing::MustEncode(tokenizer, "ab c", {.parse_special = true})) {
    EXPECT_LT(id, 259);
  }
}

TEST(Vocabulary, ByteTokensHaveAByte) {
  for (const char* text : {"<0x4>", "<0x4G>", "A", "<0x414>", "<0x-1>", "< 0x41"}) {
    VocabFile vocab = SpmVocab();
    vocab.Add(text, testing::kByte);
    EXPECT_THAT(ErrorOf(vocab.Writer()), HasSubstr("is of type byte")) << text;
  }
}

TEST(Vocabulary, SpecialIdsOutsideIt) {
  for (const char* key : {"bos", "eos", "eot", "eom", "unknown", "fim_pad", "fim_pre"}) {
    const std::string name = "tokenizer.ggml." + std::string(key) + "_token_id";
    EXPECT_THAT(ErrorOf(SpmVocab().Writer().Add(name, std::uint32_t{259})),
                HasSubstr(name + " = 259; expected 0..258"));
    EXPECT_THAT(ErrorOf(SpmVocab().Writer().Add(name, std::uint32_t{4294967295})),
                HasSubstr("4294967295"));
    EXPECT_THAT(ErrorOf(SpmVocab().Writer().Add(name, std::int32_t{-1})), HasSubstr("-1"));
    EXPECT_TRUE(LoadFrom(SpmVocab().Writer().Add(name, std::uint32_t{258})).ok()) << name;
  }
}

TEST(Vocabulary, TokenizerOutlivesItsMoves) {
  VocabFile vocab;
  vocab.model = "llama";
  vocab.Add("a");
  vocab.Add("b");
  Tokenizer first = testing::MustLoad(vocab.Writer().Add("tokenizer.ggml.add_space_prefix", false));
  Tokenizer second = std::move(first);
  first = std::move(second);
  EXPECT_EQ(testing::MustEncode(first, "ba"), (std::vector<TokenId>{1, 0}));
  EXPECT_EQ(first.Piece(1), "b");
}

}  // namespace
}  // namespace manyhead
