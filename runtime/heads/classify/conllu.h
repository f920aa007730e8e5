#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"

namespace manyhead {

struct DependencyWord {
  std::size_t begin = 0, end = 0;  ///< bytes of the sentence's text
  std::int64_t head = -1;          ///< index of the word it depends on; -1 for the root
  std::string relation;            ///< relation without its subtype
};

struct DependencySentence {
  std::int64_t line = 0;  ///< line of its first word in the file, from 1
  std::string text;
  std::vector<DependencyWord> words;
};

/// Parses the sentences of a CoNLL-U file: words, surface text, basic dependencies. Words of a
/// multiword token share its text; empty nodes, features and enhanced dependencies are skipped.
///
/// Errors   kInvalidArgument with the number of the line: another number of columns, ids out of
///          order, a head out of range, a sentence without exactly one root or with a cycle, text
///          that is not UTF-8, more than 400 words; a file without a sentence.
/// Source   universaldependencies.org/format.html
Result<std::vector<DependencySentence>> ParseConllu(std::string_view bytes);

}  // namespace manyhead
