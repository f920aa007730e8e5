#pragma once

#include <cstdint>

namespace manyhead::testing {

/// Calls of operator new in this program so far, on all threads.
std::int64_t AllocationCount();

}  // namespace manyhead::testing
