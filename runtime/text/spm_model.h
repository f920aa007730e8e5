#pragma once

#include <string_view>
#include <vector>

#include "runtime/text/text_model.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

/// SentencePiece's merging by score: among all neighbours whose joined text is a token, the pair
/// with the highest score is joined first, among equal ones the leftmost. A remaining character
/// that is no token becomes byte tokens.
class SpmModel final : public TextModel {
 public:
  /// `vocabulary` must outlive the model. With `dummy_prefix` a space precedes each text that
  /// starts the input or follows a special token; `unknown` stands for bytes without a token, if
  /// there is one.
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
