#include "runtime/text/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/formats/json_metadata.h"
#include "tests/support/read_bytes.h"

// Tokenizers of every kind against the ids that Hugging Face tokenizers gives 500 texts:
// make_hf_tokenizers.py made data/hf. MANYHEAD_HF_TOKENIZERS names a folder with more of them.

namespace manyhead {
namespace {

using ::manyhead::testing::ReadBytes;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string DataFolder() { return std::string(MANYHEAD_SOURCE_DIR) + "/tests/text/data/hf"; }

Result<HfTokenizer> ReadTokenizer(const std::string& tokenizer, const std::string& own = "",
                                  const std::string& generation = "",
                                  const std::string& config = "{}") {
  const Result<JsonMetadata> metadata = JsonMetadata::Parse(config, "config.json");
  EXPECT_TRUE(metadata.ok());
  return ReadHfTokenizer({tokenizer, own, generation, ""}, *metadata);
}

std::vector<TokenId> Encoded(const HfTokenizer& tokenizer, const std::string& text,
                             bool parse_special = true, bool add_special = true) {
  const auto ids = tokenizer.pipeline->Encode(text, {add_special, parse_special});
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

std::uint64_t HashOf(const std::vector<TokenId>& ids) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const TokenId id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      value = (value ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3;
  return value;
}

std::string Show(const std::vector<TokenId>& ids) {
  std::ostringstream out;
  for (const TokenId id : ids) out << id << " ";
  return out.str();
}

/// Compares the ids of every text with those of the file beside the tokenizer.
void ExpectReferenceIds(const fs::path& path) {
  const Result<HfTokenizer> tokenizer = ReadTokenizer(ReadBytes(path));
  ASSERT_TRUE(tokenizer.ok()) << path << ": " << tokenizer.status().message();
  const auto texts = nlohmann::json::parse(ReadBytes(DataFolder() + "/strings.json"))
                         .get<std::vector<std::string>>();
  ASSERT_EQ(texts.size(), 500U);
  std::ifstream reference(fs::path(path).replace_extension(".ids"));
  int wrong = 0;
  for (const std::string& text : texts) {
    std::size_t count = 0;
    std::uint64_t hash = 0;
    ASSERT_TRUE(reference >> std::dec >> count >> std::hex >> hash);
    const std::vector<TokenId> ids = Encoded(*tokenizer, text);
    if (ids.size() == count && HashOf(ids) == hash) continue;
    ADD_FAILURE() << nlohmann::json(text).dump() << " has " << ids.size() << " ids: " << Show(ids)
                  << "; expected " << count;
    if (++wrong == 10) return;
  }
}

class HfTokenizers : public ::testing::TestWithParam<const char*> {};

TEST_P(HfTokenizers, GiveTheReferencesIds) {
  ExpectReferenceIds(DataFolder() + "/" + GetParam() + ".json");
}

TEST_P(HfTokenizers, TakeBytesThatAreNoUtf8) {
  const Result<HfTokenizer> tokenizer =
      ReadTokenizer(ReadBytes(DataFolder() + "/" + GetParam() + ".json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string bad[] = {"\xFF",  "a\xC3", "\xE2\x96", "x\xED\xA0\x80y", "\xF4\x90\x80\x80",
                             "\x80 z"};
  for (const std::string& text : bad)
    for (const TokenId id : Encoded(*tokenizer, text))
      EXPECT_TRUE(tokenizer->vocabulary.Contains(id));
}

INSTANTIATE_TEST_SUITE_P(, HfTokenizers,
                         ::testing::Values("gpt2", "roberta", "llama3", "qwen2", "digits", "llama2",
                                           "metaspace", "unigram", "bert", "bert-cased", "words"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(HfTokenizer, GivesTheReferencesIdsForMoreFiles) {
  const char* const folder = std::getenv("MANYHEAD_HF_TOKENIZERS");
  if (folder == nullptr) GTEST_SKIP() << "MANYHEAD_HF_TOKENIZERS names no folder";
  for (const auto& file : fs::recursive_directory_iterator(folder))
    if (file.path().extension() == ".json" &&
        fs::exists(fs::path(file.path()).replace_extension(".ids")))
      ExpectReferenceIds(file.path());
}

TEST(HfTokenizer, BytesThatAreNoUtf8BecomeByteTokens) {
  const Result<HfTokenizer> bytes = ReadTokenizer(ReadBytes(DataFolder() + "/gpt2.json"));
  ASSERT_TRUE(bytes.ok());
  std::string text;
  for (const TokenId id : Encoded(*bytes, "a\xFF\xC3(\xE2\x82"))
    text += bytes->vocabulary.piece(id);
  EXPECT_EQ(text, "a\xFF\xC3(\xE2\x82");
  const Result<HfTokenizer> fallback = ReadTokenizer(ReadBytes(DataFolder() + "/llama2.json"));
  ASSERT_TRUE(fallback.ok());
  const std::vector<TokenId> ids = Encoded(*fallback, "\xFF", true, /*add_special=*/false);
  ASSERT_EQ(ids.size(), 1U);
  EXPECT_EQ(fallback->vocabulary.text(ids[0]), "<0xFF>");
  EXPECT_EQ(fallback->vocabulary.piece(ids[0]), "\xFF");
}

TEST(HfTokenizer, ControlTokensAreTextUnlessAskedFor) {
  const Result<HfTokenizer> tokenizer = ReadTokenizer(ReadBytes(DataFolder() + "/llama3.json"));
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(Encoded(*tokenizer, "<s>", true, false), ::testing::ElementsAre(1));
  EXPECT_GT(Encoded(*tokenizer, "<s>", false, false).size(), 1U);
  EXPECT_EQ(Encoded(*tokenizer, "<|x|>", false, false).size(), 1U);  // an added token of the text
  EXPECT_THAT(Encoded(*tokenizer, ""), ::testing::ElementsAre(1));
  EXPECT_TRUE(Encoded(*tokenizer, "", true, false).empty());
}

TEST(HfTokenizer, ReadsTheEndsOfATextFromItsFiles) {
  const std::string file = ReadBytes(DataFolder() + "/gpt2.json");
  const Result<HfTokenizer> own = ReadTokenizer(
      file, R"({"bos_token":{"content":"<s>"},"eos_token":"</s>"})", R"({"eos_token_id":[5,2,7]})");
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(own->bos, 1);
  EXPECT_EQ(own->eos, 2);
  EXPECT_THAT(own->end_tokens, ::testing::ElementsAre(2, 5, 7));
  const Result<HfTokenizer> of_config =
      ReadTokenizer(file, "", "", R"({"bos_token_id":3,"eos_token_id":4})");
  ASSERT_TRUE(of_config.ok());
  EXPECT_EQ(of_config->bos, 3);
  EXPECT_THAT(of_config->end_tokens, ::testing::ElementsAre(4));
  EXPECT_THAT(ReadTokenizer(file, "", R"({"eos_token_id":-1})").status().message(),
              HasSubstr("eos_token_id = -1; expected 0.."));
}

TEST(HfTokenizerText, AByteOfZeroDoesNotEndTheFile) {
  const std::string text = R"({"model":{"type":"Unigram","vocab":[["a",0]]}})";
  ASSERT_TRUE(ReadTokenizer(text).ok());
  EXPECT_THAT(ReadTokenizer(text + std::string("\0{", 2)).status().message(),
              HasSubstr("the text has a NUL byte"));
}

// Replacements that each make 50 characters of one would fill the memory.
TEST(HfTokenizerGrowth, ReplacementsThatLetATextGrowWithoutEndAreRefused) {
  nlohmann::json replace = {{"type", "Replace"}, {"pattern", {{"String", "e"}}}};
  replace["content"] = std::string(50, 'e');
  nlohmann::json file = nlohmann::json::parse(
      R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["e",0]]},"normalizer":{"type":"Sequence"}})");
  file["normalizer"]["normalizers"] = std::vector<nlohmann::json>(12, replace);
  const Result<HfTokenizer> tokenizer = ReadTokenizer(file.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto ids = tokenizer->pipeline->Encode("e", {true, true});
  ASSERT_FALSE(ids.ok());
  EXPECT_THAT(ids.status().message(), HasSubstr("replacement of \"e\" makes more than 268435456"));
}

/// A tokenizer with one part, and what its error says.
struct Refused {
  const char* name;
  const char* text;
  const char* message;
};
class HfTokenizerErrors : public ::testing::TestWithParam<Refused> {};

TEST_P(HfTokenizerErrors, NameThePartAndTheValue) {
  const Result<HfTokenizer> tokenizer = ReadTokenizer(GetParam().text);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.status().message(), HasSubstr(GetParam().message));
}

constexpr Refused kRefused[] = {
    {"Nothing", "", "the folder has no tokenizer.json"},
    {"NoJson", "{", "tokenizer.json: the text is no valid JSON"},
    {"Model", R"({"model":{"type":"WordLevel"}})",
     ".model.type = \"WordLevel\"; expected BPE, WordPiece or Unigram"},
    {"Dropout", R"({"model":{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}})",
     ".model.dropout = 0.1; expected null"},
    {"NoVocabulary", R"({"model":{"type":"BPE","merges":[]}})", ".model.vocab = null; expected"},
    {"TwoOfOneId", R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})",
     "has two tokens of id 0"},
    {"HugeId", R"({"model":{"type":"BPE","vocab":{"a":4194304},"merges":[]}})",
     "has 4194304 for 'a'; expected an id below 4194304"},
    {"TwiceTheSameToken", R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}})", "twice"},
    {"MergeOfNoToken", R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})",
     ".model.merges[0] = \"a b\": 'b' is not a token"},
    {"MergeOfThree", R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a","a"]]}})",
     "expected a list of two tokens"},
    {"Unknown", R"({"model":{"type":"BPE","unk_token":"u","vocab":{"a":0},"merges":[]}})",
     ".model.unk_token = \"u\"; expected a token of the vocabulary"},
    {"UnigramScore", R"({"model":{"type":"Unigram","vocab":[["a","b"]]}})",
     ".model.vocab[0] = [\"a\",\"b\"]; expected a list of a token and its score"},
    {"UnigramUnknown", R"({"model":{"type":"Unigram","unk_id":1,"vocab":[["a",0]]}})",
     ".model.unk_id = 1; expected a whole number from 0 to 0"},
    {"Normalizer",
     R"({"normalizer":{"type":"Precompiled"},"model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".normalizer.type = \"Precompiled\"; expected Sequence, NFC"},
    {"PreTokenizer",
     R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"}]},)"
     R"("model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".pre_tokenizer.pretokenizers[0].type = \"UnicodeScripts\"; expected Sequence, ByteLevel"},
    {"Expression",
     R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"},)"
     R"("model":{"type":"Unigram","vocab":[["a",0]]}})",
     "this PCRE2 rejects a pre-tokenizer expression at offset 2"},
    {"Behavior",
     R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Cut"},)"
     R"("model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".pre_tokenizer.behavior = \"Cut\"; expected Removed"},
    {"Decoder", R"({"decoder":{"type":"CTC"},"model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".decoder.type = \"CTC\"; expected ByteLevel"},
    {"PostProcessor",
     R"({"post_processor":{"type":"X"},"model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".post_processor.type = \"X\"; expected ByteLevel, TemplateProcessing"},
    {"TemplateId",
     R"({"post_processor":{"type":"BertProcessing","cls":["a",0],"sep":["b",9]},)"
     R"("model":{"type":"Unigram","vocab":[["a",0]]}})",
     "post_processor has id 9; expected at most 0"},
    {"AddedId",
     R"({"added_tokens":[{"id":1,"content":"a"}],"model":{"type":"Unigram","vocab":[["a",0]]}})",
     "added token 'a' has id 1; the vocabulary has 'a' at 0"},
    {"AddedText",
     R"({"added_tokens":[{"id":0,"content":"b"}],"model":{"type":"Unigram","vocab":[["a",0]]}})",
     "added token 'b' has id 0; the vocabulary has 'a' at 0"},
    {"AddedNegative",
     R"({"added_tokens":[{"id":-1,"content":"b"}],"model":{"type":"Unigram","vocab":[["a",0]]}})",
     ".added_tokens[0].id = -1; expected a whole number from 0"},
};
INSTANTIATE_TEST_SUITE_P(, HfTokenizerErrors, ::testing::ValuesIn(kRefused),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace manyhead
