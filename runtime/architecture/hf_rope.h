#pragma once

#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "runtime/architecture/architectures.h"
#include "runtime/architecture/config_reader.h"

namespace manyhead {

/// Adds the rotary embeddings of a config.json to `config`, whose layers and windows are there:
/// from "rope_parameters", or from "rope_theta" and "rope_scaling" of older files.
/// Errors   kIoError naming the key and both values; kUnsupported naming a kind of scaling.
Status ReadHfRopes(ConfigReader& reader, const Architecture& architecture, ModelConfig& config);

}  // namespace manyhead
