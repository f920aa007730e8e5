#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/checkpoint.h"
#include "runtime/text/merge_table.h"
#include "runtime/text/pretokenizer.h"
#include "runtime/text/text_model.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

/// The properties in which a byte-pair model may differ from the plain one.
struct BpeOptions {
  TextForm form = TextForm::kByteLevel;
  bool ignore_merges = false;
  bool nfc = false;  ///< text is converted to the form NFC first
};

/// Byte-pair encoding: text is split into words, and in each word the pair of neighbours whose
/// merge has the lowest rank is joined first, among equal ones the leftmost. In a byte-level
/// vocabulary a word starts as its bytes, otherwise as its characters with spaces escaped.
class BpeModel final : public TextModel {
 public:
  /// `vocabulary` must outlive the model.
  /// Errors   kIoError for merges that are missing, are not pairs, or whose parts or result are no
  ///          tokens.
  static Result<std::unique_ptr<const BpeModel>> Create(const Metadata& metadata,
                                                        const Vocabulary& vocabulary,
                                                        PreTokenizer pre_tokenizer,
                                                        const BpeOptions& options);

  Status Append(std::string_view text, bool after_special,
                std::vector<TokenId>* ids) const override;
  std::int64_t memory_bytes() const noexcept override { return merges_.memory_bytes(); }

 private:
  struct Symbol;
  struct Merge;
  struct Scratch;

  BpeModel(const Vocabulary& vocabulary, PreTokenizer pre_tokenizer, const BpeOptions& options,
           std::size_t num_merges);
  Status ReadMerge(std::string_view merge, std::int32_t rank, std::string* joined);
  TokenId WholeWord(std::string_view word) const;
  void StartSymbols(std::string_view word, std::vector<Symbol>* symbols) const;
  void RunMerges(Scratch* scratch) const;
  void Consider(Scratch* scratch, std::int32_t left, std::int32_t right) const;
  Status AppendWord(std::string_view word, Scratch* scratch, std::vector<TokenId>* ids) const;
  Status AppendBytes(std::string_view text, std::vector<TokenId>* ids) const;

  const Vocabulary* vocabulary_;
  PreTokenizer pre_tokenizer_;
  BpeOptions options_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_ids_{};  ///< tokens of single bytes in their spelling
};

}  // namespace manyhead
