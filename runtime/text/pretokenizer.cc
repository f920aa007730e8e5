#include "runtime/text/pretokenizer.h"

#include <string>

#include "runtime/text/utf8.h"

namespace manyhead {

Result<PreTokenizer> PreTokenizer::Create(std::span<const std::string_view> expressions) {
  PreTokenizer result;
  for (std::string_view expression : expressions) {
    Result<Regex> regex = Regex::Create(expression);
    if (!regex.ok()) return regex.status();
    result.expressions_.push_back(*std::move(regex));
  }
  return result;
}

Result<std::vector<std::string_view>> PreTokenizer::Split(std::string_view text) const {
  RegexScratch scratch(text.size());
  std::vector<std::string_view> words;
  std::vector<RegexPart> parts;
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const std::size_t valid = Utf8ValidPrefix(text);
    if (valid > 0) {
      words.assign(1, text.substr(0, valid));
      for (const Regex& expression : expressions_) {
        parts.clear();
        for (std::string_view word : words)
          if (Status status = expression.Split(word, scratch, &parts); !status.ok()) return status;
        words.clear();
        for (const RegexPart& part : parts) words.push_back(part.text);
      }
      result.insert(result.end(), words.begin(), words.end());
      text.remove_prefix(valid);
    }
    std::size_t invalid = 0;
    while (invalid < text.size() && Utf8CharLength(text.substr(invalid)) == 0) ++invalid;
    if (invalid > 0) result.push_back(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return result;
}

}  // namespace manyhead
