#include "runtime/text/word_splitter.h"

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"

// The characters that IsWordChar accepts, for the inside of brackets.
#define MANYHEAD_WORD_CHARS                                                    \
  R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-)" \
  R"(\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})"

namespace manyhead {
namespace {

using Made = Result<std::unique_ptr<const WordSplitter>>;

/// The fate of the parts that a pattern matches.
enum class SplitBehavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

/// Joins matches to their neighbours, or drops them, as `behavior` says.
std::vector<std::string_view> Joined(const std::vector<RegexPart>& parts, SplitBehavior behavior) {
  std::vector<std::string_view> words;
  const auto extend = [&](std::string_view part) {
    words.back() = {words.back().data(), words.back().size() + part.size()};
  };
  bool previous_match = false, first = true;
  for (const RegexPart& part : parts) {
    const bool joins =
        !first &&
        ((behavior == SplitBehavior::kContiguous && part.match == previous_match) ||
         (behavior == SplitBehavior::kMergedWithPrevious && part.match && !previous_match) ||
         (behavior == SplitBehavior::kMergedWithNext && !part.match && previous_match));
    if (behavior == SplitBehavior::kRemoved && part.match) continue;
    if (joins)
      extend(part.text);
    else
      words.push_back(part.text);
    previous_match = part.match;
    first = false;
  }
  return words;
}

/// Cuts each part by itself.
class PartSplitter : public WordSplitter {
 public:
  Status Apply(std::vector<TextPart>* parts) const final {
    std::vector<TextPart> out;
    std::vector<std::string_view> words;
    for (TextPart& part : *parts) {
      Prepare(&part);
      words.clear();
      if (Status status = Cut(part.text, &words); !status.ok()) return status;
      bool begins = part.begins;
      for (const std::string_view word : words) {
        if (word.empty()) continue;
        out.push_back({std::string(word), begins && word.data() == part.text.data()});
      }
    }
    *parts = std::move(out);
    return {};
  }

 protected:
  virtual void Prepare(TextPart*) const {}
  virtual Status Cut(std::string_view text, std::vector<std::string_view>* words) const = 0;
};

/// Splits at what an expression or a literal matches.
class PatternSplitter final : public PartSplitter {
 public:
  PatternSplitter(std::string literal, std::optional<Regex> regex, SplitBehavior behavior,
                  bool invert)
      : literal_(std::move(literal)),
        regex_(std::move(regex)),
        behavior_(behavior),
        invert_(invert) {}

 private:
  Status Cut(std::string_view text, std::vector<std::string_view>* words) const override {
    std::vector<RegexPart> parts;
    if (regex_) {
      RegexScratch scratch(text.size());
      if (Status status = regex_->Split(text, scratch, &parts); !status.ok()) return status;
    } else {
      std::size_t done = 0;
      for (std::size_t at = text.find(literal_); at != std::string_view::npos;
           at = text.find(literal_, done)) {
        if (at > done) parts.push_back({text.substr(done, at - done), false});
        parts.push_back({text.substr(at, literal_.size()), true});
        done = at + literal_.size();
      }
      if (done < text.size()) parts.push_back({text.substr(done), false});
    }
    if (invert_)
      for (RegexPart& part : parts) part.match = !part.match;
    *words = Joined(parts, behavior_);
    return {};
  }

  std::string literal_;  // not empty without an expression
  std::optional<Regex> regex_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Splits at characters of a kind.
class CharSplitter final : public PartSplitter {
 public:
  using Test = std::function<bool(char32_t)>;
  CharSplitter(Test test, SplitBehavior behavior) : test_(std::move(test)), behavior_(behavior) {}

 private:
  Status Cut(std::string_view text, std::vector<std::string_view>* words) const override {
    std::vector<RegexPart> parts;
    for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
      const bool match = test_(FirstChar(text.substr(at), &size));
      RegexPart* const last = parts.empty() ? nullptr : &parts.back();
      if (!match && last != nullptr && !last->match)
        last->text = {last->text.data(), last->text.size() + size};
      else
        parts.push_back({text.substr(at, size), match});
    }
    *words = Joined(parts, behavior_);
    return {};
  }

  Test test_;
  SplitBehavior behavior_;
};

/// GPT-2's words, whose bytes become the characters that spell them.
class ByteLevelSplitter final : public WordSplitter {
 public:
  ByteLevelSplitter(std::optional<Regex> regex, bool prefix)
      : regex_(std::move(regex)), prefix_(prefix) {}

  Status Apply(std::vector<TextPart>* parts) const override {
    std::vector<TextPart> out;
    for (TextPart& part : *parts) {
      if (prefix_ && !part.text.starts_with(' ')) part.text.insert(0, " ");
      std::vector<RegexPart> words;
      if (regex_) {
        RegexScratch scratch(part.text.size());
        if (Status status = regex_->Split(part.text, scratch, &words); !status.ok()) return status;
      } else {
        words.push_back({part.text, true});
      }
      for (const RegexPart& word : words) {
        std::string spelled;
        spelled.reserve(2 * word.text.size());
        for (const char c : word.text) spelled += ByteLevelChar(static_cast<std::uint8_t>(c));
        out.push_back({std::move(spelled), part.begins && word.text.data() == part.text.data()});
      }
    }
    *parts = std::move(out);
    return {};
  }

 private:
  std::optional<Regex> regex_;
  bool prefix_;
};

/// SentencePiece's words: spaces become a character that begins the word behind it.
class MetaspaceSplitter final : public PartSplitter {
 public:
  enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };
  MetaspaceSplitter(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

 private:
  void Prepare(TextPart* part) const override {
    std::string text;
    for (const char c : part->text) {
      if (c == ' ')
        text += replacement_;
      else
        text.push_back(c);
    }
    const bool wanted =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && part->begins);
    if (wanted && !text.starts_with(replacement_)) text.insert(0, replacement_);
    part->text = std::move(text);
  }

  Status Cut(std::string_view text, std::vector<std::string_view>* words) const override {
    std::size_t begin = 0;
    for (std::size_t at = split_ ? text.find(replacement_) : std::string_view::npos;
         at != std::string_view::npos; at = text.find(replacement_, at + replacement_.size())) {
      if (at > begin) words->push_back(text.substr(begin, at - begin));
      begin = at;
    }
    words->push_back(text.substr(begin));
    return {};
  }

  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class SplitterSequence final : public WordSplitter {
 public:
  explicit SplitterSequence(std::vector<std::unique_ptr<const WordSplitter>> splitters)
      : splitters_(std::move(splitters)) {}
  Status Apply(std::vector<TextPart>* parts) const override {
    for (const auto& splitter : splitters_)
      if (Status status = splitter->Apply(parts); !status.ok()) return status;
    return {};
  }

 private:
  std::vector<std::unique_ptr<const WordSplitter>> splitters_;
};

template <class T, class... Args>
Made Make(const Status& status, Args&&... args) {
  if (!status.ok()) return status;
  return Made(std::make_unique<const T>(std::forward<Args>(args)...));
}

Result<SplitBehavior> ReadBehavior(const JsonPart& json, const char* absent) {
  Status status;
  const std::string name = json.String("behavior", absent, &status);
  if (!status.ok()) return status;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return json.NotSupported("behavior",
                           "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

Made MakeSplit(const JsonPart& json) {
  Status status;
  const JsonPart pattern = json["pattern"];
  std::string literal = pattern.String("String", "", &status);
  const std::string expression = pattern.String("Regex", "", &status);
  const bool invert = json.Bool("invert", false, &status);
  if (!status.ok()) return status;
  const Result<SplitBehavior> behavior = ReadBehavior(json, "");
  if (!behavior.ok()) return behavior.status();
  std::optional<Regex> regex;
  if (!expression.empty()) {
    Result<Regex> made = Regex::Create(expression);
    if (!made.ok()) return made.status();
    regex.emplace(*std::move(made));
  } else if (literal.empty()) {
    return pattern.Wrong("an object with a String or a Regex that is not empty");
  }
  return Make<PatternSplitter>(status, std::move(literal), std::move(regex), *behavior, invert);
}

Made MakeRegexWords(const char* expression, SplitBehavior behavior, bool invert) {
  Result<Regex> regex = Regex::Create(expression);
  if (!regex.ok()) return regex.status();
  return Make<PatternSplitter>(Status(), std::string(), std::optional<Regex>(*std::move(regex)),
                               behavior, invert);
}

Made MakeByteLevel(const JsonPart& json) {
  Status status;
  const bool prefix = json.Bool("add_prefix_space", true, &status);
  std::optional<Regex> regex;
  if (json.Bool("use_regex", true, &status)) {
    Result<Regex> made = Regex::Create(
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
    if (!made.ok()) return made.status();
    regex.emplace(*std::move(made));
  }
  return Make<ByteLevelSplitter>(status, std::move(regex), prefix);
}

Made MakeMetaspace(const JsonPart& json) {
  using Prepend = MetaspaceSplitter::Prepend;
  Status status;
  const std::string replacement = json.String("replacement", "\xE2\x96\x81", &status);
  // Older files have a flag in the place of the scheme.
  const bool add = json.Bool("add_prefix_space", true, &status);
  const std::string scheme = json.String("prepend_scheme", add ? "always" : "never", &status);
  const bool split = json.Bool("split", true, &status);
  if (!status.ok()) return status;
  if (replacement.empty()) return json["replacement"].Wrong("a character");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return json.NotSupported("prepend_scheme", "always, first or never");
  const Prepend prepend = scheme == "always"  ? Prepend::kAlways
                          : scheme == "first" ? Prepend::kFirst
                                              : Prepend::kNever;
  return Make<MetaspaceSplitter>(status, replacement, prepend, split);
}

bool IsAnyPunctuation(char32_t c) {
  const bool ascii = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
                     (c >= '{' && c <= '~');
  return ascii || IsPunctuation(c);
}

Made MakeSequenceOf(std::vector<std::unique_ptr<const WordSplitter>> splitters) {
  return Make<SplitterSequence>(Status(), std::move(splitters));
}

Made MakeBert() {
  std::vector<std::unique_ptr<const WordSplitter>> parts;
  parts.push_back(std::make_unique<CharSplitter>(IsWhiteSpace, SplitBehavior::kRemoved));
  parts.push_back(std::make_unique<CharSplitter>(IsAnyPunctuation, SplitBehavior::kIsolated));
  return MakeSequenceOf(std::move(parts));
}

Made MakeSequence(const JsonPart& json) {
  Status status;
  std::vector<std::unique_ptr<const WordSplitter>> parts;
  const std::size_t count = json.Count("pretokenizers", &status);
  for (std::size_t i = 0; i < count; ++i) {
    Made part = MakeWordSplitter(json["pretokenizers"][i]);
    if (!part.ok()) return part.status();
    parts.push_back(*std::move(part));
  }
  if (!status.ok()) return status;
  return MakeSequenceOf(std::move(parts));
}

Made MakeDigits(const JsonPart& json) {
  Status status;
  const bool single = json.Bool("individual_digits", false, &status);
  return Make<CharSplitter>(status, IsNumber,
                            single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

Made MakePunctuation(const JsonPart& json) {
  const Result<SplitBehavior> behavior = ReadBehavior(json, "Isolated");
  if (!behavior.ok()) return behavior.status();
  return Make<CharSplitter>(Status(), IsAnyPunctuation, *behavior);
}

Made MakeDelimiter(const JsonPart& json) {
  Status status;
  const std::string delimiter = json.String("delimiter", "", &status);
  if (!status.ok()) return status;
  if (delimiter.empty()) return json["delimiter"].Wrong("a character");
  return Make<PatternSplitter>(status, delimiter, std::nullopt, SplitBehavior::kRemoved, false);
}

}  // namespace

Result<std::unique_ptr<const WordSplitter>> MakeWordSplitter(const JsonPart& json) {
  Status status;
  const std::string type = json.String("type", "", &status);
  if (!status.ok()) return status;
  if (type == "Sequence") return MakeSequence(json);
  if (type == "ByteLevel") return MakeByteLevel(json);
  if (type == "Split") return MakeSplit(json);
  if (type == "Metaspace") return MakeMetaspace(json);
  if (type == "BertPreTokenizer") return MakeBert();
  if (type == "Whitespace")
    return MakeRegexWords("[" MANYHEAD_WORD_CHARS "]+|[^" MANYHEAD_WORD_CHARS R"(\s]+)",
                          SplitBehavior::kRemoved, /*invert=*/true);
  if (type == "WhitespaceSplit")
    return Make<CharSplitter>(status, IsWhiteSpace, SplitBehavior::kRemoved);
  if (type == "Digits") return MakeDigits(json);
  if (type == "Punctuation") return MakePunctuation(json);
  if (type == "CharDelimiterSplit") return MakeDelimiter(json);
  return json.NotSupported("type",
                           "Sequence, ByteLevel, Split, Metaspace, BertPreTokenizer, Whitespace, "
                           "WhitespaceSplit, Digits, Punctuation or CharDelimiterSplit");
}

}  // namespace manyhead
