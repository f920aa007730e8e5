#pragma once

#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// Loads the tokenizer that `metadata` describes. It copies the data that it needs.
Result<Tokenizer> LoadTokenizer(const Metadata& metadata);

}  // namespace manyhead
