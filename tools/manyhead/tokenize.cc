#include <memory>
#include <string>
#include <vector>

#include "manyhead/tokenizer.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/model_path.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  TextFlags text;
};

int Run(const Flags& flags) {
  const Result<std::string> path = FindModel(flags.model);
  if (!path.ok()) return Fail(path.status());
  const Result<Tokenizer> tokenizer = Tokenizer::Load(*path);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  const Result<std::vector<TokenId>> ids = EncodeText(*tokenizer, flags.text);
  if (!ids.ok()) return Fail(ids.status());

  if (flags.format == "json") {
    Json pieces = Json::array();
    for (const TokenId id : *ids) pieces.push_back(std::string(tokenizer->Piece(id, true)));
    Stdout::WriteJson({{"ids", *ids}, {"pieces", pieces}}, -1);
  } else {
    for (const TokenId id : *ids)
      Stdout::Write(std::to_string(id) + "\t" + EscapeLine(tokenizer->Piece(id, true)) + "\n");
  }
  return Stdout::Finish();
}

}  // namespace

Command AddTokenize(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("tokenize", "Split a text into the tokens of a model");
  AddModel(app, &flags->model);
  AddText(app, &flags->text);
  AddChoice(app, "-o,--output", &flags->format, {"text", "json"}, "How to print");
  app.Footer(
      "The model may be a vocabulary alone (a GGUF file without tensors). Without -p and -f the "
      "text\n"
      "comes from standard input. In JSON, bytes of a piece that are no UTF-8 of their own read\n"
      "U+FFFD; the ids are exact.\n"
      "Examples:\n"
      "  manyhead tokenize -p 'Many readers, one book.'\n"
      "  manyhead tokenize -m vocab.gguf -f notes.txt --no-bos -o json");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
