#include "runtime/platform/dispatch.h"

namespace manyhead {

const kernels::KernelTable& KernelsFor(Isa isa) noexcept {
#define MANYHEAD_TABLE(isa, tiles)                                                                 \
  {                                                                                                \
    &kernels::isa::kAttention, &kernels::isa::kKv, &kernels::isa::kLinear, &kernels::isa::kVector, \
        tiles                                                                                      \
  }
  static constexpr kernels::KernelTable kTables[] = {
      MANYHEAD_TABLE(scalar, nullptr), MANYHEAD_TABLE(avx2, nullptr),
      MANYHEAD_TABLE(avx512, nullptr), MANYHEAD_TABLE(avx512, &kernels::amx::kTiles)};
#undef MANYHEAD_TABLE
  return kTables[static_cast<int>(isa)];
}

}  // namespace manyhead
