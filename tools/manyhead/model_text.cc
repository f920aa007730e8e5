#include "tools/manyhead/model_text.h"

#include <string>
#include <utility>

#include "tools/manyhead/output.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {

void WarnOfTwoBegins(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  if (!tokenizer.add_bos() || ids.size() < 2 || ids[0] != tokenizer.bos() || ids[1] != ids[0])
    return;
  Warn("the text begins with two begin tokens, " + std::to_string(ids[0]) + ": leave \"" +
       std::string(tokenizer.Piece(ids[0], /*special=*/true)) + "\" out of it, or --special");
}

Json TextJson(const TextFlags& flags) {
  Json json;
  if (flags.text)
    json["prompt"] = *flags.text;
  else
    json["file"] = flags.file.value_or("-");
  return json;
}

void WarnOfLongContext(const ModelConfig& config, std::int64_t context) {
  if (config.context_length == 0 || context <= config.context_length) return;
  Warn("--context " + std::to_string(context) + " exceeds the " +
       std::to_string(config.context_length) +
       " tokens that the model was trained with: what it predicts beyond them is unreliable");
}

Result<std::vector<TokenId>> EncodeText(const Tokenizer& tokenizer, const TextFlags& flags) {
  const Result<std::string> text = ReadText(flags);
  if (!text.ok()) return text.status();
  Result<std::vector<TokenId>> ids = tokenizer.Encode(*text, ToEncodeOptions(flags));
  if (ids.ok()) WarnOfTwoBegins(tokenizer, *ids);
  return ids;
}

Result<ModelText> ReadModelText(const std::string& name, const SessionFlags& session,
                                const TextFlags& text) {
  const Result<Model> model = LoadModel(name, ToModelOptions(session));
  if (!model.ok()) return model.status();
  Result<std::vector<TokenId>> ids = EncodeText(model->tokenizer(), text);
  if (!ids.ok()) return ids.status();
  WarnOfLongContext(model->config(), session.context);
  return ModelText{*model, *std::move(ids)};
}

}  // namespace manyhead::cli
