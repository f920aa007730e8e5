#pragma once

#include <cstdint>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// What a token is evaluated as. Its role, its position, the weights' types, MathMode and the
/// instruction set decide the arithmetic of its products; the number of tokens that are evaluated
/// together never does.
enum class RowRole : std::uint8_t {
  kPrefill,  ///< part of a prompt: the products that are fastest for many tokens
  kDecode,   ///< generated, or a draft to be verified: the products that are fastest for one
};

}  // namespace manyhead
