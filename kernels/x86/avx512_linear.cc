#include "kernels/kernel_table.h"
#include "kernels/linear.inl.h"

namespace manyhead::kernels::avx512 {

constinit const LinearKernels kLinear = MakeLinearKernels<TwoRows, Float16>();

}  // namespace manyhead::kernels::avx512
