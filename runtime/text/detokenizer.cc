#include <string>
#include <string_view>

#include "manyhead/tokenizer.h"
#include "runtime/text/utf8.h"

namespace manyhead {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool special, bool continues)
    : tokenizer_(&tokenizer), special_(special), at_start_(!continues) {}

std::string Detokenizer::Push(TokenId id) {
  std::string_view piece = tokenizer_->Piece(id, special_);
  if (!piece.empty() && at_start_) {
    at_start_ = false;
    // A control token that is shown has no dummy space.
    const bool dummy = tokenizer_->adds_dummy_prefix() && !tokenizer_->is_control(id);
    if (dummy && piece.front() == ' ') piece.remove_prefix(1);
  }
  pending_ += piece;
  const std::size_t ready = pending_.size() - Utf8UnfinishedTail(pending_);
  std::string text = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  text.swap(pending_);
  return text;
}

}  // namespace manyhead
