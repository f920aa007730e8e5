#pragma once

#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/formats/gguf_output.h"

namespace manyhead {

/// Returns the family that general.architecture names.
/// Errors   kIoError without the key; kUnsupported naming an architecture that this library does
///          not know, or a part of a split model.
Result<const Architecture*> ReadGgufArchitecture(const Metadata& metadata);

/// Reads the metadata of `file` as a config and checks it. tied_embeddings, vocab_size and biases
/// follow from tensors: see BindWeights.
/// Errors   kIoError naming the key and both values; kUnsupported naming a key that asks for a
///          feature which this library does not compute.
Result<ModelConfig> ReadGgufConfig(const Checkpoint& file, const Architecture& architecture);

/// Adds keys from which ReadGgufConfig reads `config`, except rotary embeddings other than the
/// plain one of base 10000.
void WriteGgufConfig(const ModelConfig& config, const Architecture& architecture,
                     GgufOutput& output);

}  // namespace manyhead
