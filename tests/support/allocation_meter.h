#pragma once

#include <cstddef>

namespace manyhead::testing {

/// Record the requests to operator new since Reset, in a program that links allocation_meter.cc.
void ResetAllocationMeter() noexcept;
std::size_t LargestAllocationBytes() noexcept;
std::size_t NumAllocations() noexcept;

}  // namespace manyhead::testing
