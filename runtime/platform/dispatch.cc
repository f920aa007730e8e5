#include "runtime/platform/dispatch.h"

namespace manyhead {

const kernels::KernelTable& KernelsFor(Isa isa) noexcept {
#define MANYHEAD_TABLE(isa) \
  { &kernels::isa::kAttention, &kernels::isa::kKv, &kernels::isa::kLinear, &kernels::isa::kVector }
  static constexpr kernels::KernelTable kTables[] = {MANYHEAD_TABLE(scalar), MANYHEAD_TABLE(avx2),
                                                     MANYHEAD_TABLE(avx512)};
#undef MANYHEAD_TABLE
  return kTables[static_cast<int>(isa)];
}

}  // namespace manyhead
