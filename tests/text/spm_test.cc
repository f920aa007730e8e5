#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::LoadFrom;
using ::manyhead::testing::MustEncode;
using ::manyhead::testing::MustLoad;
using ::manyhead::testing::SpmVocab;
using ::manyhead::testing::VocabFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581
constexpr EncodeOptions kPlain{.add_special = false};

/// Llama's ids for the pieces of "This is ", ".cpp"; every other id is a token no text contains.
VocabFile LlamaLayout() {
  VocabFile vocab = SpmVocab();
  while (vocab.tokens.size() < 32000) {
    vocab.Add("\x01" + std::to_string(vocab.tokens.size()));
  }
  const auto put = [&](TokenId id, std::string text, float score) {
    vocab.tokens[static_cast<std::size_t>(id)] = std::move(text);
    vocab.scores[static_cast<std::size_t>(id)] = score;
  };
  const std::string space = kSpace;
  put(275, "is", -16);
  put(323, space + "T", -64);
  put(338, space + "is", -79);
  put(498, space + "Th", -239);
  put(910, space + "This", -651);
  put(4013, "This", -3754);
  put(1349, "Th", -1090);
  put(8223, "cpp", -7964);
  put(21223, "pp", -30964);
  put(29871, space, -29612);
  put(29889, ".", -29630);
  for (const auto& [id, text] : {std::pair{29911, "T"},
                                 {29882, "h"},
                                 {29875, "i"},
                                 {29879, "s"},
                                 {29883, "c"},
                                 {29886, "p"}}) {
    put(id, text, -29620);
  }
  return vocab;
}

// ggml-org/llama.cpp#167: the dummy prefix, and bytes for what the vocabulary lacks.
TEST(Spm, DummyPrefixAndByteFallback) {
  const Tokenizer tokenizer = MustLoad(LlamaLayout().Writer());
  const std::string text = "This is \xF0\x9F\xA6\x99.cpp";
  const std::vector<TokenId> ids = MustEncode(tokenizer, text);
  EXPECT_THAT(ids, ElementsAre(1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223));
  EXPECT_EQ(tokenizer.Decode(ids), text);
  EXPECT_TRUE(tokenizer.adds_dummy_prefix());
  EXPECT_EQ(tokenizer.model_name(), "llama");
  EXPECT_EQ(tokenizer.pre_name(), "default");
  EXPECT_EQ(tokenizer.vocab_size(), 32000);
}

TEST(Spm, NoDummyPrefixWhenTheFileSaysSo) {
  const Tokenizer tokenizer =
      MustLoad(LlamaLayout().Writer().Add("tokenizer.ggml.add_space_prefix", false));
  EXPECT_FALSE(tokenizer.adds_dummy_prefix());
  EXPECT_THAT(MustEncode(tokenizer, "This", kPlain), ElementsAre(4013));
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{910}), " This");
}

TEST(Spm, EmptyTextGivesOnlyTheBeginToken) {
  const Tokenizer tokenizer = MustLoad(SpmVocab().Writer());
  EXPECT_THAT(MustEncode(tokenizer, ""), ElementsAre(1));
  EXPECT_THAT(MustEncode(tokenizer, "", kPlain), IsEmpty());
}

TEST(Spm, HigherScoreMergesFirstThenTheLeftmost) {
  VocabFile vocab = SpmVocab();
  for (const char* c : {"a", "b", "c"}) vocab.Add(c, 1, -100);
  const TokenId ab = vocab.Add("ab", 1, -2);
  const TokenId bc = vocab.Add("bc", 1, -1);
  const TokenId aa = vocab.Add("aa", 1, -5);
  const Tokenizer tokenizer =
      MustLoad(vocab.Writer().Add("tokenizer.ggml.add_space_prefix", false));
  const TokenId a = 259;
  EXPECT_THAT(MustEncode(tokenizer, "abc", kPlain), ElementsAre(a, bc));
  EXPECT_THAT(MustEncode(tokenizer, "aab", kPlain), ElementsAre(a, ab));
  EXPECT_THAT(MustEncode(tokenizer, "aaa", kPlain), ElementsAre(aa, a));
}

TEST(Spm, NulAndInvalidBytesComeBack) {
  VocabFile vocab = SpmVocab();
  const TokenId space = vocab.Add(kSpace);
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  const std::string text("\0\xFF\xE2\x82 a\xC0\x80\xED\xA0\x80", 11);
  const std::vector<TokenId> ids = MustEncode(tokenizer, text, kPlain);
  EXPECT_EQ(tokenizer.Decode(ids), text);
  EXPECT_THAT(ids, ElementsAre(space, 3, 3 + 0xFF, 3 + 0xE2, 3 + 0x82, space, 3 + 'a', 3 + 0xC0,
                               3 + 0x80, 3 + 0xED, 3 + 0xA0, 3 + 0x80));
}

TEST(Spm, UnknownTokenWhereBytesHaveNone) {
  VocabFile vocab;
  vocab.model = "llama";
  vocab.Add("<unk>", testing::kUnknown);
  vocab.Add("a");
  testing::GgufWriter writer = vocab.Writer();
  writer.Add("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(MustEncode(MustLoad(writer), "ab", kPlain), ElementsAre(1, 0));

  vocab.types[0] = testing::kNormal;
  testing::GgufWriter without = vocab.Writer();
  without.Add("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer tokenizer = MustLoad(without);
  const Result<std::vector<TokenId>> ids = tokenizer.Encode("ab", kPlain);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.status().message(), HasSubstr("byte = 98"));
}

// A heap keeps this at n log n; joining from the left by scanning would take 10^12 steps.
TEST(Spm, OneMegabyteOfOneCharacter) {
  VocabFile vocab = SpmVocab();
  std::string run = "a";
  for (int i = 0; i < 5; ++i, run += run) vocab.Add(run, 1, static_cast<float>(-i));
  const Tokenizer tokenizer =
      MustLoad(vocab.Writer().Add("tokenizer.ggml.add_space_prefix", false));
  const std::string text(1 << 20, 'a');
  const std::vector<TokenId> ids = MustEncode(tokenizer, text, kPlain);
  EXPECT_EQ(ids.size(), text.size() / 16);
  EXPECT_EQ(tokenizer.Decode(ids), text);
}

TEST(Spm, ScoresAreNeeded) {
  VocabFile vocab = SpmVocab();
  testing::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "llama").Add("tokenizer.ggml.tokens", vocab.tokens);
  const Result<Tokenizer> tokenizer = LoadFrom(writer);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kIoError);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("tokenizer.ggml.scores is missing"));
}

}  // namespace
}  // namespace manyhead
