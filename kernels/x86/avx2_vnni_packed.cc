#include "kernels/kernel_table.h"
#include "kernels/linear_packed.inl.h"

namespace manyhead::kernels::avx2_vnni {

constinit const PackedKernels kPacked = MakePackedKernels<EightLanes, QuadDots<EightLanes>>();

}  // namespace manyhead::kernels::avx2_vnni
