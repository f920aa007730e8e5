// The vocabularies of real models against ids that their own tokenizers gave. The files are large,
// so they are not part of the project: tools/fetch_model.py brings them, and without them the tests
// say that they were skipped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/support/read_bytes.h"
#include "tests/text/vocab_files.h"

namespace manyhead {
namespace {

using ::manyhead::testing::ModelDirectory;
using ::manyhead::testing::MustEncode;
using ::manyhead::testing::ReadBytes;
using ::testing::ElementsAre;

std::vector<std::string> Split(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(separator, begin)) != std::string::npos;) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<TokenId> ParseIds(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<TokenId>(stream), std::istream_iterator<TokenId>()};
}

std::vector<std::filesystem::path> VocabularyFiles() {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(ModelDirectory() / "vocabs", error)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Loads `path`, or says by the status that this library does not have its kind of tokenizer.
Result<Tokenizer> LoadVocabulary(const std::filesystem::path& path) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
  if (!tokenizer.ok()) {
    // WordPiece and unigram vocabularies.
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kUnsupported) << tokenizer.status().message();
  }
  return tokenizer;
}

TEST(ModelFiles, VocabulariesGiveTheIdsOfTheirModelsAndTheTextBack) {
  int pairs = 0;
  for (const std::filesystem::path& path : VocabularyFiles()) {
    if (!std::filesystem::exists(path.string() + ".inp")) continue;
    const Result<Tokenizer> tokenizer = LoadVocabulary(path);
    if (!tokenizer.ok()) continue;
    const std::vector<std::string> texts =
        Split(ReadBytes(path.string() + ".inp"), "\n__ggml_vocab_test__\n");
    const std::vector<std::string> lines = Split(ReadBytes(path.string() + ".out"), "\n");
    ASSERT_GE(lines.size(), texts.size()) << path;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> ids = MustEncode(*tokenizer, texts[i], {.add_special = false});
      EXPECT_EQ(ids, ParseIds(lines[i])) << path << " text " << i << ": " << texts[i];
      EXPECT_EQ(tokenizer->Decode(ids), texts[i]) << path << " text " << i;
      ++pairs;
    }
  }
  if (pairs == 0) GTEST_SKIP() << "no vocabularies in " << ModelDirectory() / "vocabs";
  EXPECT_GT(pairs, 40);
}

// ggml-org/llama.cpp#167 on the vocabulary of the report.
TEST(ModelFiles, LlamaDummyPrefixAndByteFallback) {
  const std::filesystem::path path = ModelDirectory() / "vocabs" / "ggml-vocab-llama-spm.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(MustEncode(*tokenizer, "This is \xF0\x9F\xA6\x99.cpp"),
              ElementsAre(1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223));
}

// Ids of Hugging Face `tokenizers`: "</s>" is text where the file declares it so.
TEST(ModelFiles, TagsOfHtmlAreText) {
  const struct {
    const char* file;
    const char* text;
    std::vector<TokenId> ids;
  } cases[] = {{"gemma3-270m.gguf", "x</s>", {236781, 212}},
               {"gemma3-270m.gguf", "<s>x</s>", {203, 236781, 212}},
               {"qwen2.5-coder-0.5b.gguf", "a</s>b", {64, 522, 82, 51407}},
               {"vocabs/ggml-vocab-qwen2.gguf", "a</s>b", {64, 522, 82, 51407}},
               {"vocabs/ggml-vocab-qwen2.gguf", "</s>", {522, 82, 29}}};
  int seen = 0;
  for (const auto& [file, text, ids] : cases) {
    const std::filesystem::path path = ModelDirectory() / file;
    if (!std::filesystem::exists(path)) continue;
    const Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (const bool parse_special : {false, true})
      EXPECT_EQ(
          MustEncode(*tokenizer, text, {.add_special = false, .parse_special = parse_special}), ids)
          << file << ": " << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
    ++seen;
  }
  if (seen == 0) GTEST_SKIP() << "no model in " << ModelDirectory();
}

// The letters that spell the bytes FF, C0, C1, F5 and FE are user-defined tokens there.
TEST(ModelFiles, BytesWithoutATokenInDeepSeeksVocabularies) {
  int seen = 0;
  for (const char* name : {"deepseek-coder", "deepseek-llm"}) {
    const std::filesystem::path path =
        ModelDirectory() / "vocabs" / (std::string("ggml-vocab-") + name + ".gguf");
    if (!std::filesystem::exists(path)) continue;
    ++seen;
    const Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text(1, static_cast<char>(byte));
      const Result<std::vector<TokenId>> ids = tokenizer->Encode(text, {.add_special = false});
      if (ids.ok()) {
        EXPECT_EQ(tokenizer->Decode(*ids), text) << name << ": " << byte;
      }
    }
    EXPECT_FALSE(tokenizer->Encode("\xFF").ok()) << name;
  }
  if (seen == 0) GTEST_SKIP() << "no vocabularies in " << ModelDirectory() / "vocabs";
}

TEST(ModelFiles, PromptsGiveTheIdsOfTheirModels) {
  const nlohmann::json golden =
      nlohmann::json::parse(ReadBytes(MANYHEAD_SOURCE_DIR "/tests/text/data/golden.json"));
  int models = 0;
  for (const nlohmann::json& model : golden["models"]) {
    const std::filesystem::path path = ModelDirectory() / model["file"].get<std::string>();
    if (!std::filesystem::exists(path)) continue;
    const Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    ++models;
    for (const nlohmann::json& test : model["cases"]) {
      const std::string text = test["text"];
      const std::vector<TokenId> ids = MustEncode(*tokenizer, text);
      EXPECT_EQ(ids, test["ids"].get<std::vector<TokenId>>()) << path << ": " << text;
      EXPECT_EQ(tokenizer->Decode(ids), text) << path;
    }
  }
  if (models == 0) GTEST_SKIP() << "no model in " << ModelDirectory();
}

}  // namespace
}  // namespace manyhead
