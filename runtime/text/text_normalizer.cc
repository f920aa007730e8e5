#include "runtime/text/text_normalizer.h"

#include <optional>
#include <utility>

#include "runtime/platform/printable.h"
#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"

namespace manyhead {
namespace {

using Made = Result<std::unique_ptr<const TextNormalizer>>;

/// Returns the characters that `keep` returns true for.
template <class Keep>
std::string Filtered(std::string_view text, Keep keep) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
    const char32_t c = FirstChar(text.substr(at), &size);
    if (keep(c)) out.append(text.substr(at, size));
  }
  return out;
}

class FormNormalizer final : public TextNormalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  Status Apply(std::string* text) const override {
    *text = ToNormalForm(form_, *text);
    return {};
  }

 private:
  NormalForm form_;
};

class Lowercase final : public TextNormalizer {
 public:
  Status Apply(std::string* text) const override {
    *text = ToLower(*text);
    return {};
  }
};

class StripAccents final : public TextNormalizer {
 public:
  Status Apply(std::string* text) const override {
    *text = Filtered(*text, [](char32_t c) { return !IsMark(c); });
    return {};
  }
};

class Strip final : public TextNormalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  Status Apply(std::string* text) const override {
    std::string_view rest = *text;
    while (left_ && !rest.empty()) {
      std::size_t size = 0;
      if (!IsWhiteSpace(FirstChar(rest, &size))) break;
      rest.remove_prefix(size);
    }
    while (right_ && !rest.empty() && IsWhiteSpace(LastChar(rest))) {
      do rest.remove_suffix(1);
      while (!rest.empty() &&
             (static_cast<unsigned char>(rest.data()[rest.size()]) & 0xC0) == 0x80);
    }
    *text = std::string(rest);
    return {};
  }

 private:
  bool left_, right_;
};

class Prepend final : public TextNormalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  Status Apply(std::string* text) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return {};
  }

 private:
  std::string prefix_;
};

/// Most bytes that replacements may make of a text: several of them could else let it grow without
/// a limit.
constexpr std::size_t kMostReplacedBytes = std::size_t{256} << 20;

class Replace final : public TextNormalizer {
 public:
  Replace(std::string pattern, std::optional<Regex> regex, std::string content)
      : pattern_(std::move(pattern)), regex_(std::move(regex)), content_(std::move(content)) {}
  Status Apply(std::string* text) const override {
    std::string out;
    out.reserve(text->size());
    if (regex_) {
      RegexScratch scratch(text->size());
      std::vector<RegexPart> parts;
      if (Status status = regex_->Split(*text, scratch, &parts); !status.ok()) return status;
      for (const RegexPart& part : parts) {
        out.append(part.match ? content_ : part.text);
        if (out.size() > kMostReplacedBytes) return TooLong();
      }
    } else {
      std::size_t done = 0;
      for (std::size_t at = text->find(pattern_); at != std::string::npos;
           at = text->find(pattern_, done)) {
        out.append(*text, done, at - done).append(content_);
        done = at + pattern_.size();
        if (out.size() > kMostReplacedBytes) return TooLong();
      }
      out.append(*text, done);
    }
    *text = std::move(out);
    return {};
  }

 private:
  Status TooLong() const {
    return Status(StatusCode::kInvalidArgument, "Encode: the normalizer's replacement of \"" +
                                                    Printable(pattern_) + "\" makes more than " +
                                                    std::to_string(kMostReplacedBytes) +
                                                    " bytes of the text; expected at most that");
  }

  std::string pattern_;  // not empty
  std::optional<Regex> regex_;
  std::string content_;
};

class BertNormalizer final : public TextNormalizer {
 public:
  struct Steps {
    bool clean = true, chinese = true, accents = true, lowercase = true;
  };
  explicit BertNormalizer(const Steps& steps) : steps_(steps) {}

  Status Apply(std::string* text) const override {
    if (steps_.clean) *text = Cleaned(*text);
    if (steps_.chinese) *text = Spaced(*text);
    if (steps_.accents)
      *text = Filtered(ToNormalForm(NormalForm::kNfd, *text),
                       [](char32_t c) { return !IsSpacelessMark(c); });
    if (steps_.lowercase) *text = ToLower(*text);
    return {};
  }

 private:
  static bool IsBlank(char32_t c) { return IsWhiteSpace(c); }

  /// Returns `text` without control characters, and with plain spaces.
  static std::string Cleaned(std::string_view text) {
    std::string out;
    for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
      const char32_t c = FirstChar(text.substr(at), &size);
      const bool line = c == '\t' || c == '\n' || c == '\r';
      if (c == 0 || c == U'\uFFFD' || (!line && IsOther(c))) continue;
      if (IsBlank(c))
        out.push_back(' ');
      else
        out.append(text.substr(at, size));
    }
    return out;
  }

  static bool IsChinese(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }

  /// Returns `text` with spaces around every ideograph.
  static std::string Spaced(std::string_view text) {
    std::string out;
    for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
      const bool chinese = IsChinese(FirstChar(text.substr(at), &size));
      if (chinese) out.push_back(' ');
      out.append(text.substr(at, size));
      if (chinese) out.push_back(' ');
    }
    return out;
  }

  Steps steps_;
};

class Sequence final : public TextNormalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const TextNormalizer>> parts)
      : parts_(std::move(parts)) {}
  Status Apply(std::string* text) const override {
    for (const auto& part : parts_)
      if (Status status = part->Apply(text); !status.ok()) return status;
    return {};
  }

 private:
  std::vector<std::unique_ptr<const TextNormalizer>> parts_;
};

template <class T, class... Args>
Made Make(const Status& status, Args&&... args) {
  if (!status.ok()) return status;
  return Made(std::make_unique<const T>(std::forward<Args>(args)...));
}

Made MakeReplace(const JsonPart& json) {
  Status status;
  const JsonPart pattern = json["pattern"];
  const std::string text = pattern.String("String", "", &status);
  const std::string expression = pattern.String("Regex", "", &status);
  const std::string content = json.String("content", "", &status);
  if (!status.ok()) return status;
  if (text.empty() && expression.empty())
    return pattern.Wrong("an object with a String or a Regex that is not empty");
  std::optional<Regex> regex;
  if (!expression.empty()) {
    Result<Regex> made = Regex::Create(expression);
    if (!made.ok()) return made.status();
    regex.emplace(*std::move(made));
  }
  return Make<Replace>(status, text, std::move(regex), content);
}

Made MakeBert(const JsonPart& json) {
  Status status;
  BertNormalizer::Steps steps;
  steps.clean = json.Bool("clean_text", true, &status);
  steps.chinese = json.Bool("handle_chinese_chars", true, &status);
  steps.lowercase = json.Bool("lowercase", true, &status);
  steps.accents = json.Bool("strip_accents", steps.lowercase, &status);
  return Make<BertNormalizer>(status, steps);
}

Made MakeSequence(const JsonPart& json) {
  Status status;
  std::vector<std::unique_ptr<const TextNormalizer>> parts;
  const std::size_t count = json.Count("normalizers", &status);
  for (std::size_t i = 0; i < count; ++i) {
    Made part = MakeTextNormalizer(json["normalizers"][i]);
    if (!part.ok()) return part.status();
    parts.push_back(*std::move(part));
  }
  return Make<Sequence>(status, std::move(parts));
}

}  // namespace

Result<std::unique_ptr<const TextNormalizer>> MakeTextNormalizer(const JsonPart& json) {
  Status status;
  const std::string type = json.String("type", "", &status);
  if (!status.ok()) return status;
  if (type == "Sequence") return MakeSequence(json);
  if (type == "NFC") return Make<FormNormalizer>(status, NormalForm::kNfc);
  if (type == "NFD") return Make<FormNormalizer>(status, NormalForm::kNfd);
  if (type == "NFKC") return Make<FormNormalizer>(status, NormalForm::kNfkc);
  if (type == "NFKD") return Make<FormNormalizer>(status, NormalForm::kNfkd);
  if (type == "Lowercase") return Make<Lowercase>(status);
  if (type == "StripAccents") return Make<StripAccents>(status);
  if (type == "Replace") return MakeReplace(json);
  if (type == "BertNormalizer") return MakeBert(json);
  if (type == "Strip") {
    const bool left = json.Bool("strip_left", true, &status);
    const bool right = json.Bool("strip_right", true, &status);
    return Make<Strip>(status, left, right);
  }
  if (type == "Prepend") {
    std::string prefix = json.String("prepend", "", &status);
    return Make<Prepend>(status, std::move(prefix));
  }
  return json.NotSupported("type",
                           "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
                           "Replace, Prepend or BertNormalizer");
}

}  // namespace manyhead
