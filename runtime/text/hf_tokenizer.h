#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/status.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/text/text_pipeline.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

/// The tokenizer that the texts of a folder describe.
struct HfTokenizer {
  std::string model_name;
  Vocabulary vocabulary;
  std::unique_ptr<const TextPipeline> pipeline;
  bool drops_space = false;
  std::optional<TokenId> bos, eos;
  std::vector<TokenId> end_tokens;  ///< sorted, each once
};

/// Reads tokenizer.json, and from the other texts and from `config`, the values of config.json,
/// which tokens begin and end a text.
/// Errors   kIoError for a text that is wrong or missing, kUnsupported for a part that this library
///          does not know; both name the text, the key and the value.
Result<HfTokenizer> ReadHfTokenizer(const TokenizerFiles& files, const Metadata& config);

}  // namespace manyhead
