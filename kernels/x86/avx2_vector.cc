#include "kernels/kernel_table.h"
#include "kernels/vector.inl.h"

namespace manyhead::kernels::avx2 {

constinit const VectorKernels kVector = MakeVectorKernels<Simd>();

}  // namespace manyhead::kernels::avx2
