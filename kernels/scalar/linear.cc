#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const LinearKernels kLinear = {};

}  // namespace manyhead::kernels::scalar
