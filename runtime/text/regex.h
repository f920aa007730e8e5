#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace manyhead {

/// A stretch of a text that an expression matches, or one between two of them.
struct RegexPart {
  std::string_view text;
  bool match = false;
};

/// Working memory of matches in texts of up to `text_size` bytes, used by one thread at a time.
/// Memory   throws bad_alloc.
class RegexScratch {
 public:
  explicit RegexScratch(std::size_t text_size);
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;
  ~RegexScratch();

 private:
  friend class Regex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
};

/// A compiled regular expression over UTF-8, with the character classes of Unicode 15.1.
///
/// Threads  immutable; Split may be called concurrently.
class Regex {
 public:
  /// Compiles `expression`, of at most 64 KiB. Beside PCRE2's syntax, \s is the Unicode property
  /// White_Space.
  /// Errors   kUnsupported for an expression that PCRE2 does not take.
  static Result<Regex> Create(std::string_view expression);

  /// Cuts `text`, which is valid UTF-8, into matches that are not empty and what lies between them;
  /// put together the parts are `text`. They are appended to `parts`.
  /// Errors   kInvalidArgument if the expression takes more steps than its limit.
  Status Split(std::string_view text, RegexScratch& scratch, std::vector<RegexPart>* parts) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
};

}  // namespace manyhead
