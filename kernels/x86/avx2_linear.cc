#include "kernels/kernel_table.h"
#include "kernels/linear.inl.h"

namespace manyhead::kernels::avx2 {

constinit const LinearKernels kLinear = MakeLinearKernels<OneRow, Float8>();

}  // namespace manyhead::kernels::avx2
