#pragma once

#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// Loads the tokenizer that the metadata of a GGUF file describe. It copies the data that it needs.
Result<Tokenizer> LoadTokenizer(const Metadata& metadata);

/// Loads the tokenizer of a checkpoint of any format.
Result<Tokenizer> LoadTokenizer(const Checkpoint& file);

}  // namespace manyhead
