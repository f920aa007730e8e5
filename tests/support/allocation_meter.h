#pragma once

#include <cstddef>

namespace manyhead::testing {

/// What operator new has been asked for since Reset, in a program that links allocation_meter.cc.
void ResetAllocationMeter() noexcept;
std::size_t LargestAllocationBytes() noexcept;
std::size_t NumAllocations() noexcept;

}  // namespace manyhead::testing
