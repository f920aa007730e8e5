#include "kernels/kernel_table.h"
#include "kernels/linear_scalar.inl.h"

namespace manyhead::kernels::scalar {

constinit const LinearKernels kLinear = MakeScalarLinearKernels();

}  // namespace manyhead::kernels::scalar
