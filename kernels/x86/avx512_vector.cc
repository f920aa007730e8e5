#include "kernels/kernel_table.h"
#include "kernels/vector.inl.h"

namespace manyhead::kernels::avx512 {

constinit const VectorKernels kVector = MakeVectorKernels<Simd>();

}  // namespace manyhead::kernels::avx512
