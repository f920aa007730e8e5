#include "tests/text/vocab_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace manyhead::testing {
namespace {

/// Written out independently of the library: the printable bytes spell themselves as a character,
/// the others follow from U+0100 on.
std::string ByteLevelText(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 + code / 64), static_cast<char>(0x80 + code % 64)};
}

}  // namespace

std::string ByteTokenText(int byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte & 0xFF));
  return text;
}

TokenId VocabFile::Add(std::string text, std::int32_t type, float score) {
  tokens.push_back(std::move(text));
  types.push_back(type);
  scores.push_back(score);
  return static_cast<TokenId>(tokens.size() - 1);
}

void VocabFile::Merge(std::string_view left, std::string_view right) {
  // Before anything is appended, since both may be views of a token.
  std::string merge = std::string(left).append(" ").append(right);
  std::string joined = std::string(left).append(right);
  if (std::find(tokens.begin(), tokens.end(), joined) == tokens.end()) Add(std::move(joined));
  merges.push_back(std::move(merge));
}

GgufWriter VocabFile::Writer() const {
  GgufWriter writer;
  writer.Add("tokenizer.ggml.model", model);
  if (pre) writer.Add("tokenizer.ggml.pre", *pre);
  writer.Add("tokenizer.ggml.tokens", tokens).Add("tokenizer.ggml.token_type", types);
  if (model == "llama") {
    writer.Add("tokenizer.ggml.scores", scores);
  } else {
    writer.Add("tokenizer.ggml.merges", merges);
  }
  return writer;
}

VocabFile SpmVocab() {
  VocabFile vocab;
  vocab.model = "llama";
  vocab.pre = "default";
  vocab.Add("<unk>", kUnknown);
  vocab.Add("<s>", kControl);
  vocab.Add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) vocab.Add(ByteTokenText(byte), kByte);
  return vocab;
}

VocabFile BpeVocab(std::string_view pre) {
  VocabFile vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  for (int byte = 0; byte < 256; ++byte) vocab.Add(ByteLevelText(byte));
  return vocab;
}

Result<Tokenizer> LoadFrom(const GgufWriter& writer) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("manyhead_text_test_" + std::to_string(::getpid()) + ".gguf");
  writer.Write(path);
  Result<Tokenizer> tokenizer = Tokenizer::Load(path.string());
  std::filesystem::remove(path);
  return tokenizer;
}

Tokenizer MustLoad(const GgufWriter& writer) {
  Result<Tokenizer> tokenizer = LoadFrom(writer);
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status().message();
    std::abort();  // there is nothing that the test could go on with
  }
  return *std::move(tokenizer);
}

std::vector<TokenId> MustEncode(const Tokenizer& tokenizer, std::string_view text,
                                const EncodeOptions& options) {
  Result<std::vector<TokenId>> ids = tokenizer.Encode(text, options);
  if (!ids.ok()) {
    ADD_FAILURE() << ids.status().message();
    return {};
  }
  return *std::move(ids);
}

std::filesystem::path ModelDirectory() {
  if (const char* directory = std::getenv("MANYHEAD_MODEL_DIR")) return directory;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache/manyhead/models";
}

}  // namespace manyhead::testing
