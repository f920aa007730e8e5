#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "tools/manyhead/json.h"
#include "tools/manyhead/options.h"

namespace manyhead::cli {

/// The model and the text that most subcommands read first.
struct ModelText {
  Model model;
  std::vector<TokenId> ids;
};

/// Warns of a text that begins with two begin tokens: its own, which --special read, and the one
/// that the model asks for. Models are trained with one.
void WarnOfTwoBegins(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);

/// Returns the source of the text that `flags` name: {"prompt": text}, {"file": path} or
/// {"file": "-"}.
Json TextJson(const TextFlags& flags);

/// Warns of a context beyond the one that the model was trained with; 0 is the default.
void WarnOfLongContext(const ModelConfig& config, std::int64_t context);

/// Returns the ids of the text that `flags` name; warns of two begin tokens.
/// Errors   those of `ReadText` and `Tokenizer::Encode`.
Result<std::vector<TokenId>> EncodeText(const Tokenizer& tokenizer, const TextFlags& flags);

/// Loads the model that `name` stands for, and encodes the text in its vocabulary; warns as above.
/// Errors   those of `LoadModel` and `EncodeText`, the model's first.
Result<ModelText> ReadModelText(const std::string& name, const SessionFlags& session,
                                const TextFlags& text);

}  // namespace manyhead::cli
