#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead {

/// Converts text without special tokens to ids.
class TextModel {
 public:
  virtual ~TextModel() = default;

  /// Appends the ids of `text` to `ids`. `after_special` is true at the start of a text and after a
  /// special token.
  /// Errors   kInvalidArgument naming a byte that the vocabulary cannot express.
  virtual Status Append(std::string_view text, bool after_special,
                        std::vector<TokenId>* ids) const = 0;

  /// The bytes of its tables, without those of the vocabulary that it refers to.
  virtual std::int64_t memory_bytes() const noexcept { return 0; }
};

}  // namespace manyhead
