#pragma once

#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// Reads the family of config.json's model_type.
/// Errors   kIoError without the key; kUnsupported naming a model_type that this library does not
///          run.
Result<const Architecture*> ReadHfArchitecture(const Metadata& metadata);

/// Reads the config.json of `file` and checks it for sense. A key that is absent has the value that
/// the family's config class in transformers gives it.
/// Errors   kIoError naming the key and both values; kUnsupported naming a key that asks for
///          something this library does not compute.
Result<ModelConfig> ReadHfConfig(const Checkpoint& file, const Architecture& architecture);

}  // namespace manyhead
