#pragma once

#include "kernels/kernel_table.h"
#include "manyhead/isa.h"

namespace manyhead {

/// Whether this CPU has VNNI's dot products in the vectors of `isa`: AVX-VNNI beside AVX2,
/// AVX512-VNNI beside AVX-512 and AMX.
bool CpuHasVnni(Isa isa) noexcept;

/// The kernels of `isa`, which this CPU must run (see SupportedIsas).
const kernels::KernelTable& KernelsFor(Isa isa) noexcept;

}  // namespace manyhead
