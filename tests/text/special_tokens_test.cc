#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::BpeVocab;
using ::manyhead::testing::kControl;
using ::manyhead::testing::kUserDefined;
using ::manyhead::testing::LoadFrom;
using ::manyhead::testing::MustEncode;
using ::manyhead::testing::MustLoad;
using ::manyhead::testing::SpmVocab;
using ::manyhead::testing::VocabFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

TEST(SpecialTokens, ControlTokensCountOnlyOnRequest) {
  VocabFile vocab = BpeVocab("gpt-2");
  const TokenId start = vocab.Add("<|s|>", kControl);
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(tokenizer, "a<|s|>b", kParse), ElementsAre('a', start, 'b'));
  EXPECT_THAT(MustEncode(tokenizer, "a<|s|>b"), ElementsAre('a', '<', '|', 's', '|', '>', 'b'));
  EXPECT_THAT(MustEncode(tokenizer, "<|s|", kParse), Not(::testing::Contains(start)));
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{'a', start, 'b'}), "ab");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{'a', start, 'b'}, true), "a<|s|>b");
}

TEST(SpecialTokens, UserDefinedTokensAreAlwaysRead) {
  VocabFile vocab = BpeVocab("gpt-2");
  const TokenId two = vocab.Add("  ", kUserDefined);
  const TokenId four = vocab.Add("    ", kUserDefined);
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  const std::vector<TokenId> ids = MustEncode(tokenizer, "a       b");
  EXPECT_THAT(ids, ElementsAre('a', four, two, ' ', 'b'));
  EXPECT_EQ(tokenizer.Decode(ids), "a       b");
}

TEST(SpecialTokens, LongestFirstThenLeftmost) {
  VocabFile vocab = BpeVocab("gpt-2");
  const TokenId ab = vocab.Add("<ab", kControl);
  const TokenId abc = vocab.Add("<abc>", kControl);
  const TokenId bcd = vocab.Add("c><d", kControl);
  const TokenId xx = vocab.Add("XX", kControl);
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(tokenizer, "<abc><d", kParse), ElementsAre(abc, '<', 'd'));
  EXPECT_THAT(MustEncode(tokenizer, "<abx><d", kParse), ElementsAre(ab, 'x', '>', '<', 'd'));
  EXPECT_THAT(MustEncode(tokenizer, "c><d<ab", kParse), ElementsAre(bcd, ab));
  EXPECT_THAT(MustEncode(tokenizer, "XXX", kParse), ElementsAre(xx, 'X'));
}

TEST(SpecialTokens, DummyPrefixFollowsEachOfThem) {
  VocabFile vocab = SpmVocab();
  const TokenId space = vocab.Add("\xE2\x96\x81");
  const TokenId a = vocab.Add("a");
  const Tokenizer tokenizer = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(tokenizer, "a</s>a", kParse), ElementsAre(space, a, 2, space, a));
}

TEST(SpecialTokens, Phi3TakesTheWhiteSpaceBehind) {
  VocabFile vocab = SpmVocab();
  const TokenId space = vocab.Add("\xE2\x96\x81");
  const TokenId a = vocab.Add("a");
  const TokenId end = vocab.Add("<|end|>", kControl);
  const Tokenizer phi = MustLoad(vocab.Writer().Add("general.name", "Phi-3 mini"));
  EXPECT_THAT(MustEncode(phi, "<|end|> \n a<s> a", kParse),
              ElementsAre(end, space, a, 1, space, space, a));
  const Tokenizer other = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(other, "<|end|> a", kParse), ElementsAre(end, space, space, a));
}

TEST(SpecialTokens, BeginAndEndAsTheFileSays) {
  VocabFile vocab = SpmVocab();
  const TokenId space = vocab.Add("\xE2\x96\x81");
  const TokenId a = vocab.Add("a");
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "a"), ElementsAre(1, space, a));
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer().Add("tokenizer.ggml.add_bos_token", false)), "a"),
              ElementsAre(space, a));
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer().Add("tokenizer.ggml.add_eos_token", true)), "a"),
              ElementsAre(1, space, a, 2));
}

TEST(SpecialTokens, BytePairModelsBeginWithBosOnlyWhereTheyDo) {
  VocabFile vocab = BpeVocab("gpt-2");
  const TokenId bos = vocab.Add("<bos>", kControl);
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer().Add("tokenizer.ggml.bos_token_id", bos)), "a"),
              ElementsAre('a'));
  vocab.pre = "llama-bpe";
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer().Add("tokenizer.ggml.bos_token_id", bos)), "a"),
              ElementsAre(bos, 'a'));
  EXPECT_FALSE(MustLoad(vocab.Writer()).add_bos());

  const Result<Tokenizer> no_bos =
      LoadFrom(vocab.Writer().Add("tokenizer.ggml.add_bos_token", true));
  ASSERT_FALSE(no_bos.ok());
  EXPECT_THAT(no_bos.status().message(), HasSubstr("add_bos_token = true without"));
  const Result<Tokenizer> no_eos =
      LoadFrom(vocab.Writer().Add("tokenizer.ggml.add_eos_token", true));
  ASSERT_FALSE(no_eos.ok());
  EXPECT_THAT(no_eos.status().message(), HasSubstr("add_eos_token = true without"));
}

// Blaizzy/mlx-vlm PR#2112: ends from different places join each other.
TEST(SpecialTokens, EndTokensOfAllKeysAndTexts) {
  VocabFile vocab = SpmVocab();
  const TokenId im_end = vocab.Add("<|im_end|>", kControl);
  const TokenId turn = vocab.Add("<end_of_turn>", kControl);
  const Tokenizer tokenizer = MustLoad(vocab.Writer()
                                           .Add("tokenizer.ggml.eos_token_id", std::uint32_t{9})
                                           .Add("tokenizer.ggml.eot_token_id", std::uint32_t{7})
                                           .Add("tokenizer.ggml.eom_token_id", std::uint32_t{9}));
  EXPECT_THAT(tokenizer.end_tokens(), ElementsAre(2, 7, 9, im_end, turn));
  EXPECT_EQ(tokenizer.eos(), 9);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_TRUE(tokenizer.is_control(im_end));

  const Tokenizer several =
      MustLoad(vocab.Writer().Add("tokenizer.ggml.eos_token_id", std::vector<std::int32_t>{12, 5}));
  EXPECT_THAT(several.end_tokens(), ElementsAre(2, 5, 12, im_end, turn));
  EXPECT_EQ(several.eos(), 12);
}

TEST(SpecialTokens, EndTokensThatOthersReplace) {
  VocabFile vocab = BpeVocab("gpt-2");
  vocab.Add("<|end|>", kControl);
  const TokenId end = 256;
  EXPECT_THAT(MustLoad(vocab.Writer()).end_tokens(), ElementsAre(end));
  const TokenId call = vocab.Add("<|call|>", kControl);
  const TokenId done = vocab.Add("<|return|>", kControl);
  EXPECT_THAT(MustLoad(vocab.Writer()).end_tokens(), ElementsAre(call, done));

  VocabFile html = BpeVocab("gpt-2");
  html.Add("</s>", kControl);
  const TokenId response = html.Add("<|tool_response>", kControl);
  const Tokenizer tokenizer = MustLoad(html.Writer());
  EXPECT_THAT(tokenizer.end_tokens(), ElementsAre(response));
  EXPECT_FALSE(tokenizer.is_control(256));
}

// Public report ggml-org/llama.cpp PR#21492: "</s>" is a tag of HTML in the vocabularies of Gemma
// (user-defined) and Qwen2.5 (normal). The declared type decides, not the text.
TEST(SpecialTokens, TheDeclaredTypeOverrulesTheText) {
  for (const char* text : {"</s>", "<|im_end|>", "<|endoftext|>", "[EOS]", "<PRE>", "<|fim_pad|>",
                           "<REPO>", "<|file_sep|>", "[PAD]"}) {
    VocabFile vocab = BpeVocab("gpt-2");
    const TokenId id = vocab.Add(text, kUserDefined);
    const Tokenizer defined = MustLoad(vocab.Writer());
    EXPECT_THAT(defined.end_tokens(), IsEmpty()) << text;
    EXPECT_FALSE(defined.is_control(id)) << text;
    EXPECT_THAT(MustEncode(defined, "a" + std::string(text)), ElementsAre('a', id)) << text;
    EXPECT_EQ(defined.Decode(std::vector<TokenId>{id}), text);

    vocab.types[static_cast<std::size_t>(id)] = testing::kNormal;
    const Tokenizer normal = MustLoad(vocab.Writer());
    EXPECT_THAT(normal.end_tokens(), IsEmpty()) << text;
    EXPECT_THAT(MustEncode(normal, text, kParse), Not(::testing::Contains(id))) << text;

    // A key of the file that names it declares more than its type.
    const Tokenizer named = MustLoad(vocab.Writer().Add("tokenizer.ggml.eos_token_id", id));
    EXPECT_THAT(named.end_tokens(), ElementsAre(id)) << text;
  }
}

TEST(SpecialTokens, WithoutDeclaredTypesTheTextDecides) {
  VocabFile vocab = BpeVocab("gpt-2");
  const TokenId end = vocab.Add("<|im_end|>");
  const Tokenizer tokenizer = MustLoad(testing::GgufWriter()
                                           .Add("tokenizer.ggml.model", "gpt2")
                                           .Add("tokenizer.ggml.pre", "gpt-2")
                                           .Add("tokenizer.ggml.tokens", vocab.tokens)
                                           .Add("tokenizer.ggml.merges", vocab.merges));
  EXPECT_THAT(tokenizer.end_tokens(), ElementsAre(end));
  EXPECT_TRUE(tokenizer.is_control(end));
  EXPECT_THAT(MustEncode(tokenizer, "a<|im_end|>", kParse), ElementsAre('a', end));
}

TEST(SpecialTokens, NoneAtAll) {
  const Tokenizer tokenizer = MustLoad(BpeVocab("gpt-2").Writer());
  EXPECT_THAT(tokenizer.end_tokens(), IsEmpty());
  EXPECT_EQ(tokenizer.bos(), std::nullopt);
  EXPECT_EQ(tokenizer.eos(), std::nullopt);
}

}  // namespace
}  // namespace manyhead
