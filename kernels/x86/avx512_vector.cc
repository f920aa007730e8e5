#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx512 {

constinit const VectorKernels kVector = {};

}  // namespace manyhead::kernels::avx512
