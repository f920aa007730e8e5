#pragma once

#include <string_view>
#include <vector>

#include "runtime/text/text_model.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

/// SentencePiece's merging by score: of all neighbours whose texts together are a token, the pair
/// of the highest score is joined first, of equal ones the leftmost. A character left over that is
/// no token comes out as byte tokens.
class SpmModel final : public TextModel {
 public:
  /// `vocabulary` outlives the model. With `dummy_prefix` a space goes before each text that starts
  /// the input or follows a special token; `unknown` stands for bytes without a token, if there is
  /// one.
  SpmModel(const Vocabulary& vocabulary, bool dummy_prefix, TokenId unknown)
      : vocabulary_(&vocabulary), dummy_prefix_(dummy_prefix), unknown_(unknown) {}

  Status Append(std::string_view text, bool after_special,
                std::vector<TokenId>* ids) const override;

 private:
  struct Symbol;
  struct Merge;
  class Merger;

  Status AppendBytes(std::string_view text, std::vector<TokenId>* ids) const;

  const Vocabulary* vocabulary_;
  bool dummy_prefix_;
  TokenId unknown_;
};

}  // namespace manyhead
