#include "runtime/text/text_pipeline.h"

#include <string>

#include "runtime/platform/errors.h"
#include "runtime/text/utf8.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

Result<std::vector<TokenId>> TextPipeline::Encode(std::string_view text,
                                                  const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  if (options.add_special) ids = prefix;
  for (bool begins = true; !text.empty(); begins = false) {
    const std::size_t valid = Utf8ValidPrefix(text);
    if (valid > 0) {
      Status status = AppendValid(text.substr(0, valid), begins, options.parse_special, &ids);
      if (!status.ok()) return status;
      text.remove_prefix(valid);
    } else {
      Status status = AppendByte(static_cast<std::uint8_t>(text.front()), &ids);
      if (!status.ok()) return status;
      text.remove_prefix(1);
    }
  }
  if (options.add_special) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

Status TextPipeline::AppendValid(std::string_view text, bool begins, bool parse_special,
                                 std::vector<TokenId>* ids) const {
  for (const Fragment& fragment : found_raw.Split(text, parse_special)) {
    if (fragment.id != kNoToken) {
      ids->push_back(fragment.id);
      continue;
    }
    const bool first = begins && fragment.text.data() == text.data();
    if (Status status = AppendStretch(fragment.text, first, parse_special, ids); !status.ok())
      return status;
  }
  return {};
}

Status TextPipeline::AppendStretch(std::string_view text, bool begins, bool parse_special,
                                   std::vector<TokenId>* ids) const {
  std::string normalized(text);
  if (normalizer != nullptr)
    if (Status status = normalizer->Apply(&normalized); !status.ok()) return status;
  for (const Fragment& fragment : found_normalized.Split(normalized, parse_special)) {
    if (fragment.id != kNoToken) {
      ids->push_back(fragment.id);
      continue;
    }
    std::vector<TextPart> words;
    words.push_back(
        {std::string(fragment.text), begins && fragment.text.data() == normalized.data()});
    if (splitter != nullptr)
      if (Status status = splitter->Apply(&words); !status.ok()) return status;
    for (const TextPart& word : words)
      if (Status status = model->Append(word.text, ids); !status.ok()) return status;
  }
  return {};
}

Status TextPipeline::AppendByte(std::uint8_t byte, std::vector<TokenId>* ids) const {
  const auto& known = model->ids();
  const auto found = byte_level ? known.find(ByteLevelChar(byte))
                                : known.find(std::string_view(ByteTokenText(byte)));
  const TokenId id = found != known.end() ? found->second : model->unknown();
  if (id == kNoToken)
    return InvalidArgument("Encode", "byte = ", static_cast<int>(byte),
                           " has no token, and there is no unknown token");
  ids->push_back(id);
  return {};
}

}  // namespace manyhead
