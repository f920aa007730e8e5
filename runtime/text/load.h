#pragma once

#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// The tokenizer that the metadata of `file` describes. It copies what it needs.
Result<Tokenizer> LoadTokenizer(const Metadata& metadata);

}  // namespace manyhead
