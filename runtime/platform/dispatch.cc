#include "runtime/platform/dispatch.h"

#include "runtime/platform/isa.h"

namespace manyhead {
namespace {

using kernels::KernelTable;

/// The kernels of each instruction set, with products of four bytes at a time where the CPU has
/// them: their bits are the same.
struct Tables {
  KernelTable by_isa[4];

  Tables() noexcept
      : by_isa{
            {&kernels::scalar::kAttention, &kernels::scalar::kKv, &kernels::scalar::kLinear,
             &kernels::scalar::kVector, nullptr, nullptr, nullptr},
            {&kernels::avx2::kAttention, &kernels::avx2::kKv, &kernels::avx2::kLinear,
             &kernels::avx2::kVector,
             CpuHasVnni(Isa::kAvx2) ? &kernels::avx2_vnni::kPacked : &kernels::avx2::kPacked,
             nullptr, nullptr},
            {&kernels::avx512::kAttention, &kernels::avx512::kKv, &kernels::avx512::kLinear,
             &kernels::avx512::kVector,
             CpuHasVnni(Isa::kAvx512) ? &kernels::avx512_vnni::kPacked : &kernels::avx512::kPacked,
             nullptr, nullptr},
        } {
    by_isa[3] = by_isa[2];
    by_isa[3].tiles = &kernels::amx::kTiles;
    by_isa[3].tiles_int8 = &kernels::amx::kTilesInt8;
  }
};

}  // namespace

const KernelTable& KernelsFor(Isa isa) noexcept {
  static const Tables tables;
  return tables.by_isa[static_cast<int>(isa)];
}

}  // namespace manyhead
