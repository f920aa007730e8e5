#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/text/regex.h"

namespace manyhead {

/// Splits text into words, which byte-pair merges do not cross.
///
/// Threads  immutable; Split may be called concurrently.
class PreTokenizer {
 public:
  /// Compiles `expressions`, which have the form of PreTokenizerSpec::expressions.
  static Result<PreTokenizer> Create(std::span<const std::string_view> expressions);

  /// Returns the words of `text` in order; together they are `text`. Bytes that are not valid UTF-8
  /// form words of their own, one for each run.
  /// Errors   kInvalidArgument if an expression takes more steps than its limit.
  Result<std::vector<std::string_view>> Split(std::string_view text) const;

 private:
  std::vector<Regex> expressions_;
};

}  // namespace manyhead
