#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_bytes.h"
#include "tests/support/gguf_edits.h"
#include "tests/support/memory_file.h"
#include "tests/text/vocab_files.h"

using manyhead::Detokenizer;
using manyhead::EncodeOptions;
using manyhead::Result;
using manyhead::TokenId;
using manyhead::Tokenizer;
using manyhead::testing::GgufEdits;
using manyhead::testing::MemoryFile;
using manyhead::testing::VocabFile;

namespace {

constexpr std::uint8_t kVocabs = 3;

void AddWords(VocabFile& vocab, std::string_view space) {
  vocab.Merge("h", "e");
  vocab.Merge("l", "l");
  vocab.Merge("he", "ll");
  vocab.Merge("hell", "o");
  vocab.Merge(space, "hello");
  vocab.Merge("1", "2");
}

manyhead::testing::GgufWriter Vocab(std::uint8_t kind) {
  using manyhead::testing::kControl;
  using manyhead::testing::kUserDefined;
  VocabFile vocab;
  if (kind == 0) {
    vocab = manyhead::testing::SpmVocab();
    for (const char* piece :
         {"\u2581", "h", "e", "l", "o", "he", "ll", "hello", "\u2581hello", "\u00e9"})
      vocab.Add(piece, manyhead::testing::kNormal, static_cast<float>(vocab.tokens.size()));
  } else {
    vocab = manyhead::testing::BpeVocab(kind == 1 ? "qwen2" : "llama-bpe");
    AddWords(vocab, "\u0120");
  }
  vocab.Add("<|im_start|>", kControl);
  vocab.Add("    ", kUserDefined);
  manyhead::testing::GgufWriter writer = vocab.Writer();
  writer.Add("tokenizer.ggml.bos_token_id", 1U).Add("tokenizer.ggml.eos_token_id", 2U);
  writer.Add("tokenizer.ggml.eot_token_id", 3U).Add("tokenizer.ggml.unknown_token_id", 0U);
  writer.Add("tokenizer.ggml.add_bos_token", true).Add("tokenizer.ggml.add_eos_token", true);
  writer.Add("tokenizer.ggml.add_space_prefix", true);
  return writer;
}

/// Everything about `ids` and the text they spell agrees.
std::string Spell(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) FuzzCheck(id >= 0 && id < tokenizer.vocab_size());
  const std::string text = tokenizer.Decode(ids, /*special=*/true);
  Detokenizer stream(tokenizer, /*special=*/true);
  std::string pieces;
  for (const TokenId id : ids) pieces += stream.Push(id);
  pieces += stream.Flush();
  FuzzCheck(pieces == text);
  return text;
}

/// The kinds of text that the ids of a text spell.
enum class Spells : std::uint8_t {
  kAnyText,   ///< the dummy prefix and unknown tokens change it
  kSameText,  ///< the text
  kComposed,  ///< its form NFC
};

/// Whether there are characters that NFC may change; none stands before U+0300.
bool HasMarks(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<std::uint8_t>(c) >= 0xCC; });
}

void EncodeText(const Tokenizer& tokenizer, const std::string& text, Spells spells) {
  for (const bool add_special : {false, true}) {
    for (const bool parse_special : {false, true}) {
      const Result<std::vector<TokenId>> ids = tokenizer.Encode(text, {add_special, parse_special});
      if (!ids.ok()) {
        FuzzCheckMessage(ids.status().message());
        continue;
      }
      const std::string spelled = Spell(tokenizer, *ids);
      if (spells == Spells::kAnyText || add_special) continue;
      FuzzCheck(spelled == text || (spells == Spells::kComposed && HasMarks(text)));
    }
  }
}

void LoadVocabulary(const std::string& bytes) {
  static const MemoryFile memory;
  FuzzCheck(memory.Set(bytes));
  const Result<Tokenizer> tokenizer = Tokenizer::Load(memory.path());
  if (!tokenizer.ok()) {
    FuzzCheckMessage(tokenizer.status().message());
    return;
  }
  std::vector<TokenId> all;
  for (std::int64_t id = -1; id <= tokenizer->vocab_size(); ++id) {
    tokenizer->Piece(static_cast<TokenId>(id), true);
    if (id >= 0 && id < tokenizer->vocab_size()) all.push_back(static_cast<TokenId>(id));
  }
  Spell(*tokenizer, all);
  std::vector<TokenId> known(tokenizer->end_tokens().begin(), tokenizer->end_tokens().end());
  known.push_back(tokenizer->bos().value_or(0));
  known.push_back(tokenizer->eos().value_or(0));
  Spell(*tokenizer, known);
  EncodeText(*tokenizer, "hello  <|im_start|> w\u00f6rld \xff 12345\n", Spells::kAnyText);
}

const Tokenizer& Fixed(std::uint8_t kind) {
  static const std::array<Tokenizer, kVocabs> tokenizers = {manyhead::testing::MustLoad(Vocab(0)),
                                                            manyhead::testing::MustLoad(Vocab(1)),
                                                            manyhead::testing::MustLoad(Vocab(2))};
  return tokenizers.at(kind);
}

}  // namespace

// The first byte chooses: the rest is text for one of three tokenizers, or what is changed in one
// of their vocabularies. Text becomes known tokens, which spell it exactly where tokens are made of
// bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<GgufEdits, kVocabs> edits = {
      GgufEdits(Vocab(0).Bytes()), GgufEdits(Vocab(1).Bytes()), GgufEdits(Vocab(2).Bytes())};
  manyhead::testing::FuzzBytes bytes(data, size);
  const auto kind = static_cast<std::uint8_t>(bytes.Take<std::uint8_t>() % (2 * kVocabs));
  if (kind < kVocabs) {
    constexpr Spells kSpells[] = {Spells::kAnyText, Spells::kComposed, Spells::kSameText};
    EncodeText(Fixed(kind), bytes.Rest(), kSpells[kind]);
  } else {
    LoadVocabulary(edits.at(kind - kVocabs).Apply(bytes));
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const std::string texts[] = {"hello hello  world 12 123\n\n\tit's I'LL",
                               "h\u00e9llo \u4e16\u754c \U0001f600 <|im_start|>     x",
                               std::string("\xff\xc3\x28\xe2\x82 \x00 a", 9)};
  std::vector<std::string> seeds;
  std::mt19937 random(1);
  for (std::uint8_t vocab = 0; vocab < kVocabs; ++vocab) {
    for (const std::string& text : texts) seeds.push_back(static_cast<char>(vocab) + text);
    for (int i = 0; i < 20; ++i) {
      seeds.emplace_back(1, static_cast<char>(kVocabs + vocab));
      for (int j = 0; j < i % 9; ++j) seeds.back() += static_cast<char>(random());
    }
  }
  return seeds;
}
