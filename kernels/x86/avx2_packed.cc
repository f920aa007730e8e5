#include "kernels/kernel_table.h"
#include "kernels/linear_packed.inl.h"

namespace manyhead::kernels::avx2 {

constinit const PackedKernels kPacked = MakePackedKernels<EightLanes, PairDots<EightLanes>>();

}  // namespace manyhead::kernels::avx2
