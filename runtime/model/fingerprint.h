#pragma once

#include <string>

#include "manyhead/model.h"

namespace manyhead {

/// Returns one printable line that distinguishes models: architecture, name, and a checksum of all
/// keys of its file, of the names, types and shapes of all tensors, and of a sample of each one's
/// data.
std::string FingerprintOf(const Model::Impl& model);

}  // namespace manyhead
