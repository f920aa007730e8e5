#include "runtime/heads/classify/conllu.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/platform/errors.h"
#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

constexpr std::size_t kColumns = 10;
constexpr std::int64_t kMostWords = 400;
constexpr std::size_t kMostRelationBytes = 64;
constexpr std::size_t kMostFormBytes = 1024;
constexpr std::size_t kForm = 1, kHead = 6, kRelation = 7, kMisc = 9;

using Columns = std::array<std::string_view, kColumns>;

std::optional<std::int64_t> Number(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

/// Reads "a<mark>b" as two numbers.
std::optional<std::pair<std::int64_t, std::int64_t>> Pair(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  const auto first = Number(text.substr(0, at)), second = Number(text.substr(at + 1));
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

/// Returns a short form of a file's text for messages, without control characters.
std::string Shown(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

bool IsRelation(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text != "_" && text.front() != ':' && text.size() <= kMostRelationBytes &&
         std::all_of(text.begin(), text.end(), allowed);
}

/// Returns true unless "SpaceAfter=No" is among the features.
bool SpaceFollows(std::string_view misc) {
  while (!misc.empty()) {
    const std::size_t end = misc.find('|');
    if (misc.substr(0, end) == "SpaceAfter=No") return false;
    misc = end == misc.npos ? std::string_view() : misc.substr(end + 1);
  }
  return true;
}

class Parser {
 public:
  Result<std::vector<DependencySentence>> Run(std::string_view bytes);

 private:
  template <class... Parts>
  static Status WrongAt(std::int64_t line, const Parts&... parts) {
    return InvalidArgument("CoNLL-U", "line ", line, ": ", parts...);
  }
  template <class... Parts>
  Status Wrong(const Parts&... parts) const {
    return WrongAt(line_, parts...);
  }

  Status ReadLine(std::string_view line);
  Status SplitLine(std::string_view line, Columns* columns) const;
  Status ReadRange(const Columns& columns);
  Status ReadWord(const Columns& columns);
  Status CheckForm(const Columns& columns) const;
  Status EndSentence();
  Status CheckTree() const;
  /// Appends a surface form and returns its position.
  std::pair<std::size_t, std::size_t> AppendText(const Columns& columns);
  std::int64_t words() const { return static_cast<std::int64_t>(sentence_.words.size()); }

  std::vector<DependencySentence> sentences_;
  DependencySentence sentence_;
  std::int64_t line_ = 0;
  std::int64_t range_end_ = 0;  // the last word of the current multiword token
  std::pair<std::size_t, std::size_t> range_text_;
  bool space_ = false;    // a space precedes the next form
  bool started_ = false;  // a line with columns has been read since the last empty line
};

Result<std::vector<DependencySentence>> Parser::Run(std::string_view bytes) {
  while (!bytes.empty()) {
    ++line_;
    const std::size_t end = bytes.find('\n');
    std::string_view line = bytes.substr(0, end);
    bytes = end == bytes.npos ? std::string_view() : bytes.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (Status status = ReadLine(line); !status.ok()) return status;
  }
  ++line_;
  if (Status status = EndSentence(); !status.ok()) return status;
  if (sentences_.empty()) return InvalidArgument("CoNLL-U", "no sentence; expected at least one");
  return std::move(sentences_);
}

Status Parser::ReadLine(std::string_view line) {
  if (line.empty()) return EndSentence();
  if (line.front() == '#' && !started_) return Status();
  Columns columns;
  if (Status status = SplitLine(line, &columns); !status.ok()) return status;
  if (!started_) sentence_.line = line_;
  started_ = true;
  const std::string_view id = columns[0];
  if (id.find('-') != id.npos) return ReadRange(columns);
  if (id.find('.') != id.npos) {
    const auto node = Pair(id, '.');
    if (node && node->first == words() && node->second > 0) return Status();
    return Wrong("id = ", Shown(id), "; expected an empty node after word ", words());
  }
  return ReadWord(columns);
}

Status Parser::SplitLine(std::string_view line, Columns* columns) const {
  const auto count = static_cast<std::size_t>(std::count(line.begin(), line.end(), '\t')) + 1;
  if (count != kColumns) return Wrong("columns = ", count, "; expected ", kColumns);
  const std::size_t text = std::min(Utf8ValidPrefix(line), line.find('\0'));
  if (text < line.size()) return Wrong("byte ", text + 1, " is no UTF-8 text");
  for (std::string_view& column : *columns) {
    const std::size_t end = line.find('\t');
    column = line.substr(0, end);
    line = end == line.npos ? std::string_view() : line.substr(end + 1);
    if (column.empty())
      return Wrong("column ", &column - columns->data() + 1, " is empty; expected text or '_'");
  }
  return Status();
}

Status Parser::CheckForm(const Columns& columns) const {
  if (columns[kForm].size() <= kMostFormBytes) return Status();
  return Wrong("form has ", columns[kForm].size(), " bytes; expected 1..", kMostFormBytes);
}

std::pair<std::size_t, std::size_t> Parser::AppendText(const Columns& columns) {
  if (space_) sentence_.text += ' ';
  const std::size_t begin = sentence_.text.size();
  sentence_.text += columns[kForm];
  space_ = SpaceFollows(columns[kMisc]);
  return {begin, sentence_.text.size()};
}

Status Parser::ReadRange(const Columns& columns) {
  const auto range = Pair(columns[0], '-');
  const std::int64_t next = words() + 1;
  if (!range || range->first != next || range->second < next || range_end_ >= next)
    return Wrong("id = ", Shown(columns[0]), "; expected a range that begins with ",
                 std::max(next, range_end_ + 1));
  if (range->second > kMostWords)
    return Wrong("id = ", Shown(columns[0]), "; expected at most ", kMostWords, " words");
  if (Status status = CheckForm(columns); !status.ok()) return status;
  range_end_ = range->second;
  range_text_ = AppendText(columns);
  return Status();
}

Status Parser::ReadWord(const Columns& columns) {
  const std::int64_t next = words() + 1;
  if (Number(columns[0]) != next) return Wrong("id = ", Shown(columns[0]), "; expected ", next);
  if (next > kMostWords) return Wrong("id = ", next, "; expected at most ", kMostWords, " words");
  if (Status status = CheckForm(columns); !status.ok()) return status;
  const auto head = Number(columns[kHead]);
  if (!head || *head == next || *head > kMostWords)
    return Wrong("head = ", Shown(columns[kHead]), "; expected 0 or another word's id");
  const std::string_view relation = columns[kRelation];
  if (!IsRelation(relation))
    return Wrong("relation = ", Shown(relation), "; expected a name such as 'nsubj'");
  DependencyWord word;
  std::tie(word.begin, word.end) = next <= range_end_ ? range_text_ : AppendText(columns);
  word.head = *head - 1;
  word.relation = relation.substr(0, relation.find(':'));
  sentence_.words.push_back(std::move(word));
  return Status();
}

Status Parser::EndSentence() {
  if (!started_) return Status();
  if (words() == 0)
    return WrongAt(sentence_.line, "the sentence has no word; expected at least one");
  if (words() < range_end_)
    return Wrong("the sentence ends after word ", words(), "; expected ", range_end_,
                 " for its multiword token");
  if (Status status = CheckTree(); !status.ok()) return status;
  sentences_.push_back(std::move(sentence_));
  sentence_ = {};
  range_end_ = 0;
  space_ = started_ = false;
  return Status();
}

/// Checks that there is one root, to which every word leads.
Status Parser::CheckTree() const {
  std::int64_t roots = 0;
  for (const DependencyWord& word : sentence_.words) {
    if (word.head >= words())
      return WrongAt(sentence_.line, "word ", &word - sentence_.words.data() + 1,
                     " has head = ", word.head + 1, "; expected 0..", words());
    roots += word.head < 0;
  }
  if (roots != 1) return WrongAt(sentence_.line, "the sentence has ", roots, " roots; expected 1");
  for (std::int64_t start = 0; start < words(); ++start) {
    std::int64_t steps = 0;
    for (std::int64_t i = start; i >= 0; i = sentence_.words[static_cast<std::size_t>(i)].head)
      if (++steps > words())
        return WrongAt(sentence_.line, "the heads of word ", start + 1,
                       " form a cycle; expected a way to the root");
  }
  return Status();
}

}  // namespace

Result<std::vector<DependencySentence>> ParseConllu(std::string_view bytes) {
  return Parser().Run(bytes);
}

}  // namespace manyhead
