#include "kernels/kernel_table.h"
#include "kernels/linear_packed.inl.h"

namespace manyhead::kernels::avx512 {

constinit const PackedKernels kPacked = MakePackedKernels<SixteenLanes, PairDots<SixteenLanes>>();

}  // namespace manyhead::kernels::avx512
