#pragma once

#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "tools/manyhead/options.h"

namespace manyhead::cli {

/// What most subcommands begin with.
struct ModelText {
  Model model;
  std::vector<TokenId> ids;
};

/// The ids of the text that `flags` name.
/// Errors   those of `ReadText` and `Tokenizer::Encode`.
Result<std::vector<TokenId>> EncodeText(const Tokenizer& tokenizer, const TextFlags& flags);

/// The model that `name` stands for, and the ids of the text in its vocabulary.
/// Errors   those of `LoadModel` and `EncodeText`, the model's first.
Result<ModelText> ReadModelText(const std::string& name, const SessionFlags& session,
                                const TextFlags& text);

}  // namespace manyhead::cli
