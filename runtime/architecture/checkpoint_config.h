#pragma once

#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// Reads the family of a checkpoint of any format.
/// Errors   as ReadGgufArchitecture and ReadHfArchitecture.
Result<const Architecture*> ReadArchitecture(const Checkpoint& file);

/// Reads the config of a checkpoint of any format, but for what its tensors say.
/// Errors   as ReadGgufConfig and ReadHfConfig.
Result<ModelConfig> ReadConfig(const Checkpoint& file, const Architecture& architecture);

}  // namespace manyhead
