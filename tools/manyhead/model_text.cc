#include "tools/manyhead/model_text.h"

#include <utility>

#include "tools/manyhead/report.h"

namespace manyhead::cli {

Result<std::vector<TokenId>> EncodeText(const Tokenizer& tokenizer, const TextFlags& flags) {
  const Result<std::string> text = ReadText(flags);
  if (!text.ok()) return text.status();
  return tokenizer.Encode(*text, ToEncodeOptions(flags));
}

Result<ModelText> ReadModelText(const std::string& name, const SessionFlags& session,
                                const TextFlags& text) {
  const Result<Model> model = LoadModel(name, ToModelOptions(session));
  if (!model.ok()) return model.status();
  Result<std::vector<TokenId>> ids = EncodeText(model->tokenizer(), text);
  if (!ids.ok()) return ids.status();
  return ModelText{*model, *std::move(ids)};
}

}  // namespace manyhead::cli
