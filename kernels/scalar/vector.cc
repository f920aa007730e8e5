#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const VectorKernels kVector = {};

}  // namespace manyhead::kernels::scalar
