#pragma once

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// Returns the version of the library that runs, e.g. "0.1.0". Before 1.0 a new second number may
/// change the binary interface, and the shared library's name has both.
const char* Version() noexcept;

}  // namespace manyhead
