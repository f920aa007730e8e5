#pragma once

#include <string>

#include "manyhead/status.h"

namespace manyhead::cli {

/// Returns the file that `model` stands for: a path as it is; the name of a fetched model, looked
/// up in $MANYHEAD_MODEL_DIR, $XDG_CACHE_HOME/manyhead/models or ~/.cache/manyhead/models; empty or
/// "bundled" for the bundled model, which is $MANYHEAD_BUNDLED_MODEL, or lies beside the
/// executable, in its prefix's share/manyhead, or in the source tree around it.
/// Errors   kIoError that says where the file was searched for and how to get it.
Result<std::string> FindModel(const std::string& model);

}  // namespace manyhead::cli
