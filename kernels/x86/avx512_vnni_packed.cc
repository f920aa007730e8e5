#include "kernels/kernel_table.h"
#include "kernels/linear_packed.inl.h"

namespace manyhead::kernels::avx512_vnni {

constinit const PackedKernels kPacked = MakePackedKernels<SixteenLanes, QuadDots<SixteenLanes>>();

}  // namespace manyhead::kernels::avx512_vnni
