#include "runtime/text/normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/tokenizer.h"
#include "runtime/text/pretokenizer_table.h"
#include "tests/text/vocab_files.h"

/// The form NFC that families of Qwen2, GPT-NeoX and Command R bring text to before anything else.
/// The ids of real vocabularies are those of Hugging Face `tokenizers` with their tokenizer.json's
/// normalizer and pre-tokenizer (public reports ggml-org/llama.cpp#6980, gigatoken#35).

namespace manyhead {
namespace {

using ::manyhead::testing::BpeVocab;
using ::manyhead::testing::ModelDirectory;
using ::manyhead::testing::MustEncode;
using ::manyhead::testing::MustLoad;
using ::manyhead::testing::VocabFile;
using ::testing::ElementsAreArray;

std::string Nfc(std::string_view text) {
  std::string storage;
  return std::string(ToNfc(text, &storage));
}

// Values of Unicode Standard Annex 15 and of the Unicode Character Database.
TEST(Nfc, ComposesLettersAndMarks) {
  const struct {
    std::string_view text, composed;
  } cases[] = {{"", ""},
               {"plain", "plain"},
               {"cafe\u0301 au lait", "caf\u00E9 au lait"},
               {"\u212B\u2126\u0387", "\u00C5\u03A9\u00B7"},
               {"o\u0323\u0302", "\u1ED9"},
               {"o\u0302\u0323", "\u1ED9"},         // marks in canonical order first
               {"q\u0307\u0323", "q\u0323\u0307"},  // ... also where nothing composes
               {"\u1112\u1161\u11AB", "\uD55C"},    // Hangul
               {"\uAC00\u11A8", "\uAC01"},
               {"\u0958", "\u0915\u093C"},  // excluded from composition
               {"\u0344", "\u0308\u0301"},
               {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b"},
               {"\u0301e", "\u0301e"},
               {"\U0001D15E", "\U0001D157\U0001D165"}};
  for (const auto& [text, composed] : cases) {
    EXPECT_EQ(Nfc(text), composed) << text;
    EXPECT_EQ(Nfc(composed), composed) << text;
    // Neighbours on both sides, of one byte and of more, change nothing.
    for (const std::string_view edge : {" ", "x", "\u4E00", "\U0001F999"}) {
      const std::string before = std::string(edge).append(text).append(edge);
      if (text.starts_with("\u0301") || text.starts_with("\u0344"))
        continue;  // it joins what stands before it
      EXPECT_EQ(Nfc(before), std::string(edge).append(composed).append(edge)) << before;
    }
  }
}

TEST(Nfc, BytesThatAreNoCharactersStay) {
  EXPECT_EQ(Nfc("e\xCC"), "e\xCC");
  EXPECT_EQ(Nfc("\xFF"
                "e\u0301\xC0\x80"
                "e\u0301"),
            "\xFF\u00E9\xC0\x80\u00E9");
  EXPECT_EQ(Nfc("e\xED\xA0\x80\u0301"), "e\xED\xA0\x80\u0301");  // a surrogate between them
  EXPECT_EQ(Nfc(std::string_view("e\0\u0301", 4)), std::string_view("e\0\u0301", 4));
}

TEST(Nfc, ALongTextOfMarks) {
  std::string text, composed;
  for (int i = 0; i < 100000; ++i) {
    text += i % 3 == 0 ? "e\u0301" : "\u0435\u0308";
    composed += i % 3 == 0 ? "\u00E9" : "\u0451";
  }
  EXPECT_EQ(Nfc(text), composed);
}

TEST(Nfc, BelongsToTheFamiliesWhoseTokenizersHaveIt) {
  std::vector<std::string_view> names;
  for (const std::string_view name : PreTokenizerNames())
    if (FindPreTokenizer(name)->nfc) names.push_back(name);
  EXPECT_THAT(names, ElementsAreArray({"command-r", "deepseek-r1-qwen", "mpt", "olmo", "qwen2"}));
}

TEST(Nfc, TextIsComposedBetweenSpecialTokens) {
  VocabFile vocab = BpeVocab("qwen2");
  const TokenId special = vocab.Add("<e>", testing::kControl);
  vocab.Merge(vocab.tokens[0xC3], vocab.tokens[0xA9]);
  const TokenId e_acute = 257;
  const EncodeOptions parse{.add_special = false, .parse_special = true};
  const Tokenizer qwen = MustLoad(vocab.Writer());
  EXPECT_THAT(MustEncode(qwen, "e\u0301<e>e\u0301"),
              ElementsAreArray({e_acute, TokenId{'<'}, TokenId{'e'}, TokenId{'>'}, e_acute}));
  // A mark behind a special token finds no letter there.
  EXPECT_THAT(MustEncode(qwen, "e\u0301<e>\u0301", parse),
              ElementsAreArray({e_acute, special, TokenId{0xCC}, TokenId{0x81}}));
  EXPECT_EQ(qwen.Decode(MustEncode(qwen, "cafe\u0301")), "caf\u00E9");
  vocab.pre = "gpt-2";
  EXPECT_THAT(MustEncode(MustLoad(vocab.Writer()), "e\u0301"),
              ElementsAreArray({TokenId{'e'}, TokenId{0xCC}, TokenId{0x81}}));
}

struct RealCase {
  const char* file;
  std::string text;
  std::vector<TokenId> ids;
};

TEST(Nfc, RealVocabulariesGiveTheIdsOfTheirTokenizers) {
  const RealCase cases[] = {
      {"qwen2", "cafe\u0301 au lait", {924, 58858, 7906, 1187, 275}},
      {"qwen2", "e\u0301", {963}},
      {"qwen2", "\u0387", {13935}},
      {"qwen2", "\u212B", {144044}},
      {"qwen2", "o\u0323\u0302", {37678}},
      {"qwen2", "\u1112\u1161\u11AB\u1100\u1173\u11AF", {23573, 83291}},
      {"qwen2", "Cu\u031B\u0309a Vie\u0323\u0302t", {34, 90063, 128324}},
      {"qwen2", "\u0958 \u2126", {64704, 5502, 120, 7851, 102}},
      {"qwen2", "e\u0301e\u0301e\u0301 1\u0301", {963, 963, 963, 220, 16, 53839}},
      {"qwen2", "\u0344x", {136, 230, 53839, 87}},
      {"qwen35", "e\u0301", {68, 53839}},
      {"mpt", "A\u030A ngstro\u0308m", {18221, 9782, 46816}},
      {"mpt", "\u1112\u1161\u11AB\u1100\u1173\u11AF", {39742, 36178, 211}},
      {"mpt", "o\u0323\u0302", {36937}},
      {"command-r", "cafe\u0301 au lait", {2469, 28413, 2470, 112839}},
      {"command-r", "\u0958 \u2126", {2654, 6346, 38524}},
      {"command-r", "q\u0307\u0323", {88, 178291, 144, 237}},
      {"gpt-2", "cafe\u0301", {66, 8635, 136, 223}},
      {"gpt-2", "\u212B", {158, 226, 104}}};
  int seen = 0;
  for (const auto& [file, text, ids] : cases) {
    const std::filesystem::path path =
        ModelDirectory() / "vocabs" / (std::string("ggml-vocab-") + file + ".gguf");
    if (!std::filesystem::exists(path)) continue;
    const Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(MustEncode(*tokenizer, text, {.add_special = false}), ids) << file << ": " << text;
    ++seen;
  }
  if (seen == 0) GTEST_SKIP() << "no vocabularies in " << ModelDirectory() / "vocabs";
}

}  // namespace
}  // namespace manyhead
