#include "kernels/kernel_table.h"
#include "kernels/vector.inl.h"

namespace manyhead::kernels::scalar {

constinit const VectorKernels kVector = MakeVectorKernels<Simd>();

}  // namespace manyhead::kernels::scalar
