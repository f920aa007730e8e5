#pragma once

#include <string>

#include "manyhead/memory.h"
#include "manyhead/status.h"

namespace manyhead::cli {

/// Writes a GGUF file of `shape` to `path`, with random weights of a size that keeps activations
/// where a trained model's are, and a tokenizer of a handful of tokens. The same shape gives the
/// same file.
/// Errors   kUnsupported naming what this version's layer loop does not run; kIoError.
Status WriteRandomModel(const ModelShape& shape, const std::string& path);

}  // namespace manyhead::cli
