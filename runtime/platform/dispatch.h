#pragma once

#include "kernels/kernel_table.h"
#include "manyhead/isa.h"

namespace manyhead {

/// Returns the kernels of `isa`, which this CPU must run (see SupportedIsas).
const kernels::KernelTable& KernelsFor(Isa isa) noexcept;

}  // namespace manyhead
