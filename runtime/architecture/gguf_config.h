#pragma once

#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/formats/gguf_output.h"

namespace manyhead {

/// The family of general.architecture.
/// Errors   kIoError without the key; kUnsupported naming an architecture that this library does
///          not know, or a part of a split model.
Result<const Architecture*> ReadArchitecture(const Metadata& metadata);

/// The metadata of `file` as a config, checked for sense. tied_embeddings, vocab_size and biases
/// come from tensors: see BindWeights.
/// Errors   kIoError naming the key and both values; kUnsupported naming a key that asks for
///          something this library does not compute.
Result<ModelConfig> ReadGgufConfig(const Checkpoint& file, const Architecture& architecture);

/// Adds keys from which ReadGgufConfig would read `config`, but for rotary embeddings other than
/// the plain one of base 10000.
void WriteGgufConfig(const ModelConfig& config, const Architecture& architecture,
                     GgufOutput& output);

}  // namespace manyhead
